"""Vectors of sync rules: which rows and columns a token sees and writes, and its scope."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from lakesync.core.delta import canonical
from lakesync.core.rules import OPERATORS, rules_from_stored
from lakesync.core.visibility import Viewer
from tests.support.vectors.case import Chance, Subject, case

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.vectors.case import Case

CASES: Final = 300
TABLES: Final = ("todos", "lists", "users")
COLUMNS: Final = ("owner", "size", "due")
LITERALS: Final = (
    "ann",
    "7",
    7,
    7.0,
    1.5,
    True,
    False,
    "2024-02-29",
    "2024-02-29T13:05:09Z",
    "",
    "\u00e9",
)
CLAIMS: Final = ("sub", "org.id", "org.teams", "missing", "none")
VALUES: Final = (*LITERALS, None, [7], {"a": 1}, "8", 6, "2024-02-29T15:05:09+02:00", "2024-03-01")
TOKEN: Final = {
    "sub": "ann",
    "org": {"id": 7, "teams": ["red", "blue", 7, True]},
    "none": None,
    "due": "2024-02-29T13:05:09Z",
}


def _cases() -> Iterator[Case]:
    for number in range(CASES):
        chance = Chance(f"visibility {number}")
        rules = _rules(chance)
        viewer = Viewer(rules_from_stored(rules), TOKEN)
        table = chance.one_of(TABLES)
        before, after = _row(chance), _row(chance)
        rows = [None if row is None else {k: canonical(v) for k, v in row.items()}
                for row in (before, after)]  # fmt: skip
        expect = {
            "seesBefore": viewer.sees(table, rows[0]),
            "seesAfter": viewer.sees(table, rows[1]),
            "transition": viewer.transition(table, rows[0], rows[1]).value,
            "mayWrite": viewer.may_write(table, rows[0], rows[1]),
            "omitted": sorted(viewer.omitted(table)),
            "scope": viewer.scope().text(),
        }
        given = {
            "rules": rules, "claims": TOKEN, "table": table, "before": before, "after": after
        }  # fmt: skip
        yield case("V1 V2 V4 V5 V6 V12", given, expect)


def _rules(chance: Chance) -> dict[str, Any]:
    buckets = [
        {
            "name": f"bucket{place}",
            "tables": sorted(chance.some_of(TABLES, 2)),
            "filters": [_filter(chance) for _ in range(chance.below(3))],
            **({"write": [_filter(chance)]} if chance.is_lucky(4) else {}),
        }
        for place in range(chance.below(4))
    ]
    omit = [
        {
            "tables": sorted(chance.some_of(TABLES, 2)),
            "columns": sorted({chance.one_of(COLUMNS)}),
            **({"except": [_claim_filter(chance)]} if chance.is_lucky(2) else {}),
        }
        for _ in range(chance.one_of((0, 0, 1, 2)))
    ]
    return {"version": 1, "buckets": buckets, **({"omit": omit} if omit else {})}


def _filter(chance: Chance) -> dict[str, Any]:
    return {"column": chance.one_of(COLUMNS), **_comparison(chance)}


def _claim_filter(chance: Chance) -> dict[str, Any]:
    return {"claim": chance.one_of(CLAIMS), **_comparison(chance)}


def _comparison(chance: Chance) -> dict[str, Any]:
    op = chance.one_of(sorted(OPERATORS))
    value = f"jwt:{chance.one_of(CLAIMS)}" if chance.is_lucky(2) else chance.one_of(LITERALS)
    if op == "in":
        value = [chance.one_of(LITERALS) for _ in range(1 + chance.below(3))]
    return {"op": op, "value": value}


def _row(chance: Chance) -> dict[str, Any] | None:
    if chance.is_lucky(6):
        return None
    return {name: chance.one_of(VALUES) for name in COLUMNS if not chance.is_lucky(5)}


SUBJECT: Final = Subject(
    "What rules let a token see and write: decided by whole rows, before and after a change.",
    {
        "rules": "as an administrator saves them",
        "claims": "of the token",
        "table": "the row's table",
        "before": "the columns of the row before the change; null if there was none",
        "after": "and after; null if there is none",
    },
    {
        "seesBefore": "whether the token sees the row before",
        "seesAfter": "and after",
        "transition": "what the change is to the token's client",
        "mayWrite": "whether it may make the change itself",
        "omitted": "columns of the table that it is not sent, in lower case",
        "scope": "the text that a page carries",
    },
    _cases,
)
