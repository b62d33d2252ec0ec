"""The error tree: complete, drawn as it is, and nowhere else."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

import pytest

from lakesync import errors
from lakesync.errors import BY_CODE, LakeSyncError, Retry
from tests.support.repository import product_modules

if TYPE_CHECKING:
    from collections.abc import Iterator


def tree(root: type[LakeSyncError], depth: int = 0) -> Iterator[tuple[int, type[LakeSyncError]]]:
    """Yield every error with its depth, as the drawing has them."""
    yield depth, root
    for child in root.__subclasses__():
        yield from tree(child, depth + 1)


EVERY = [kind for _, kind in tree(LakeSyncError)]
LEAVES = [kind for kind in EVERY if not kind.__subclasses__()]


@pytest.mark.parametrize("kind", LEAVES)
def test_every_leaf_says_what_it_is_and_when_to_try_again(kind: type[LakeSyncError]) -> None:
    assert re.fullmatch(r"[A-Z][A-Z_]+[A-Z]", vars(kind)["code"])
    assert 400 <= kind.status < 600
    assert isinstance(kind.retry, Retry)
    assert (kind.__doc__ or "").endswith(".")


def test_codes_are_unique() -> None:
    codes = [vars(kind)["code"] for kind in EVERY if "code" in vars(kind)]

    assert sorted(codes) == sorted(set(codes)) == sorted(BY_CODE)


def test_codes_that_existing_clients_know_keep_their_spelling() -> None:
    known = """VALIDATION_ERROR SCHEMA_ERROR BACKPRESSURE_ERROR CLOCK_DRIFT AUTH_ERROR FORBIDDEN
        NOT_FOUND RATE_LIMITED ADAPTER_ERROR FLUSH_ERROR INTERNAL_ERROR"""

    assert set(known.split()) <= set(BY_CODE)


DRAWN = re.compile(
    r"^    (?P<branch>[ │├└─]*)(?P<name>[A-Z]\w+) *(?P<code>[A-Z]+(?:_[A-Z]+)*\b)?.*?"
    r"(?:Retry\.(?P<retry>\w+))?$",
    re.MULTILINE,
)


def test_the_drawing_is_the_tree() -> None:
    drawn = [
        (len(line["branch"]) // 4, line["name"], line["code"])
        for line in DRAWN.finditer(errors.__doc__ or "")
    ]

    assert drawn == [
        (depth, kind.__name__, vars(kind).get("code")) for depth, kind in tree(LakeSyncError)
    ]


def test_the_drawing_says_when_to_try_again() -> None:
    for line in DRAWN.finditer(errors.__doc__ or ""):
        if line["retry"]:
            assert getattr(errors, line["name"]).retry is Retry[line["retry"]]


def test_there_is_no_error_outside_the_tree() -> None:
    faults = [
        f"{module.name}: {node.name}"
        for module in product_modules()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ClassDef)
        and not module.name.endswith("lakesync/errors.py")
        and {ast.unparse(base).split(".")[-1] for base in node.bases} & {k.__name__ for k in EVERY}
    ]

    assert faults == []
