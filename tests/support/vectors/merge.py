"""Vectors of merging: the deltas of one row, in some order, and the row that they make."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lakesync.core.delta import Op, make_delta
from lakesync.core.merge import as_read, fold, view
from tests.support.vectors.case import (
    CLIENTS,
    Chance,
    Subject,
    base64_of,
    case,
    delta_fields,
    state_fields,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lakesync.core.delta import Delta
    from lakesync.core.merge import RowState
    from tests.support.vectors.case import Case

CASES: Final = 1_000
VALUES: Final = (None, 0, 1, 10, 9, "x", "\u00e9", "\uffee", "\U0001f600", [1], {"k": 1}, True, "1")


def _cases() -> Iterator[Case]:
    for number in range(CASES):
        chance = Chance(f"merge {number}")
        drawn = [_delta(chance, stamps=1 + number % 6) for _ in range(1 + chance.below(7))]
        if chance.is_lucky(3):
            drawn.append(chance.one_of(drawn))
        state = fold(drawn)
        given = {"deltas": [delta_fields(delta) for delta in drawn]}
        expect = {
            "state": state_fields(state),
            "row": _row(as_read(state, delete_wins=False)),
            "rowWhereDeletesWin": _row(as_read(state, delete_wins=True)),
        }
        yield case("M1 M2 M3 M4 M5 M6 M7 M10", given, expect)


def _delta(chance: Chance, stamps: int) -> Delta:
    op = chance.one_of((Op.INSERT, Op.UPDATE, Op.UPDATE, Op.DELETE))
    names = chance.some_of("pqr", 3)
    columns = {} if op is Op.DELETE else {name: chance.one_of(VALUES) for name in names}
    hlc = chance.stamp() if chance.is_lucky(4) else 1 + chance.below(stamps)
    return make_delta(op, "todos", "r1", columns, client_id=chance.one_of(CLIENTS), hlc=hlc)


def _row(state: RowState) -> dict[str, str] | None:
    row = view(state)
    return None if row is None else {name: base64_of(raw) for name, raw in sorted(row.items())}


SUBJECT: Final = Subject(
    "The deltas of one row make the same row in any order; merge them as given and in others.",
    {"deltas": "of one row; the same one may occur twice"},
    {
        "state": "the row's state: its latest insert and delete, and each column's winning write",
        "row": "what an app sees; null if there is no row",
        "rowWhereDeletesWin": "the same in a table that declares deleteWins",
    },
    _cases,
)
