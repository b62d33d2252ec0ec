"""The error tree: complete, drawn as it is, and nowhere else."""

from __future__ import annotations

import ast
import builtins
import re
from typing import TYPE_CHECKING

import pytest

from lakesync import errors
from lakesync.errors import BY_CODE, LakeSyncError, Retry
from tests.support.repository import product_modules
from tests.support.some import some

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


def tree(root: type[LakeSyncError], depth: int = 0) -> Iterator[tuple[int, type[LakeSyncError]]]:
    """Yield every error with its depth, as the drawing has them."""
    yield depth, root
    for child in root.__subclasses__():
        yield from tree(child, depth + 1)


EVERY = [kind for _, kind in tree(LakeSyncError)]
LEAVES = [kind for kind in EVERY if not kind.__subclasses__()]


@pytest.mark.parametrize("kind", LEAVES)
def test_every_leaf_error_has_a_code_status_retry_rule_and_docstring(
    kind: type[LakeSyncError],
) -> None:
    assert re.fullmatch(r"[A-Z][A-Z_]+[A-Z]", vars(kind)["code"])
    assert 400 <= kind.status < 600
    assert isinstance(kind.retry, Retry)
    assert (kind.__doc__ or "").endswith(".")


def test_error_codes_are_unique() -> None:
    codes = [vars(kind)["code"] for kind in EVERY if "code" in vars(kind)]

    assert sorted(codes) == sorted(set(codes)) == sorted(BY_CODE)


def test_error_codes_known_to_existing_clients_still_exist() -> None:
    known = """VALIDATION_ERROR SCHEMA_ERROR BACKPRESSURE_ERROR CLOCK_DRIFT AUTH_ERROR FORBIDDEN
        NOT_FOUND RATE_LIMITED ADAPTER_ERROR FLUSH_ERROR INTERNAL_ERROR"""

    assert set(known.split()) <= set(BY_CODE)


MADE_ONCE = """
from lakesync.errors import Forbidden

class _Own(ValueError): ...
NO = Forbidden("no")
EACH = {name: errors.Unavailable(name) for name in "ab"}
class Door:
    shut = _Own("shut")
    def open(self, otherwise: Exception = Forbidden("no")) -> None:
        why = lambda: Forbidden("no")
        raise why() or Forbidden("no")
"""


def exceptions(modules: Iterable[ast.Module]) -> set[str]:
    """Return the names of all exceptions: Python's, the tree's, and those that modules declare."""
    names = {kind.__name__ for kind in EVERY}
    names |= {name for name, value in vars(builtins).items() if isinstance(value, type)
              and issubclass(value, BaseException)}  # fmt: skip
    classes = [
        (node.name, {ast.unparse(base).split(".")[-1] for base in node.bases})
        for tree in modules
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    ]
    before = -1
    while before < len(names):
        before = len(names)
        names |= {name for name, bases in classes if bases & names}
    return names


def made_at_import(node: ast.AST) -> Iterator[ast.Call]:
    """Yield every call that runs when a module is loaded: not those inside of functions."""
    if isinstance(node, ast.Lambda):
        return
    children: list[ast.AST] = list(ast.iter_child_nodes(node))
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        children = [node.args, *node.decorator_list]
    if isinstance(node, ast.Call):
        yield node
    for child in children:
        yield from made_at_import(child)


def shared(tree: ast.Module, names: set[str]) -> list[str]:
    """Return the exceptions that a module makes once and for all, with their lines."""
    return [
        f"{call.lineno}: {ast.unparse(call.func)}"
        for call in made_at_import(tree)
        if ast.unparse(call.func).split(".")[-1] in names
    ]


def test_no_exception_instance_is_shared_between_requests() -> None:
    names = exceptions(module.tree for module in product_modules())
    faults = {m.name: made for m in product_modules() if (made := shared(m.tree, names))}

    assert faults == {}, "raised twice, an exception says in one answer what another request caused"


def test_module_level_exception_instances_are_detected() -> None:
    tree = ast.parse(MADE_ONCE)

    assert shared(tree, exceptions([tree])) == [
        "5: Forbidden",
        "6: errors.Unavailable",
        "8: _Own",
        "9: Forbidden",
    ]


DRAWN = re.compile(
    r"^    (?P<branch>[ │├└─]*)(?P<name>[A-Z]\w+) *(?P<code>[A-Z]+(?:_[A-Z]+)*\b)?.*?"
    r"(?:Retry\.(?P<retry>\w+))?$",
    re.MULTILINE,
)


def test_error_tree_in_the_docstring_matches_the_classes() -> None:
    drawn = [
        (len(line["branch"]) // 4, line["name"], line["code"])
        for line in DRAWN.finditer(errors.__doc__ or "")
    ]

    assert drawn == [
        (depth, kind.__name__, vars(kind).get("code")) for depth, kind in tree(LakeSyncError)
    ]


def test_retry_rules_in_the_docstring_match_the_classes() -> None:
    drawn = [line for line in DRAWN.finditer(errors.__doc__ or "") if line["retry"]]
    for line in some(drawn):
        assert getattr(errors, line["name"]).retry is Retry[line["retry"]]


def test_no_error_subclass_is_defined_outside_the_errors_module() -> None:
    faults = [
        f"{module.name}: {node.name}"
        for module in product_modules()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ClassDef)
        and not module.name.endswith("lakesync/errors.py")
        and {ast.unparse(base).split(".")[-1] for base in node.bases} & {k.__name__ for k in EVERY}
    ]

    assert faults == []
