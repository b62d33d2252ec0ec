"""The job's arguments, in the style of Glue: ``--name value``, among others that are not ours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lakesync.errors import ValidationFailed

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Arguments:
    """What a run works on."""

    lake_bucket: str
    """The bucket of claims, staged batches and the lease."""
    database_prefix: str
    """What the catalogue databases of all gateways begin with."""
    catalog: str
    """The Spark catalogue, as ``--conf`` names it."""
    only: str = ""
    """One table, as ``gateway/table``; empty for everything that waits."""


def parse_arguments(argv: Sequence[str]) -> Arguments:
    """Read the arguments; those of Glue itself are passed over.

    Raises:
        ValidationFailed: one of ours is missing.
    """
    found = dict(_pairs(argv))
    required = ("lake_bucket", "database_prefix", "catalog")
    missing = [f"--{name}" for name in required if not found.get(name)]
    if missing:
        raise ValidationFailed(f"the job needs {', '.join(missing)}", field=missing[0])
    return Arguments(
        lake_bucket=found["lake_bucket"],
        database_prefix=found["database_prefix"],
        catalog=found["catalog"],
        only=found.get("only", "").strip("/"),
    )


def _pairs(argv: Sequence[str]) -> list[tuple[str, str]]:
    """Give each name with the word after it; a flag, which has none, gets an empty value."""
    pairs = []
    for place, word in enumerate(argv):
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            following = argv[place + 1] if place + 1 < len(argv) else ""
            pairs.append((name, value if equals else "" if _is_name(following) else following))
    return pairs


def _is_name(word: str) -> bool:
    return word.startswith("--")
