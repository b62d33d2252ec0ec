"""A table's past: points in time (`--as-of`), and a row's history cell by cell.

A point in time is a time, a snapshot id or a commit stamp. A cell is a value that a delta wrote,
and the value before. Deltas are merged in commit order, the order in which they became visible. So
a write that came late may lose to one that was made later and committed before it: its cell says
so. Law H2: ``docs/spec/history.md``.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from lakesync.analysis.connection import UsageFault
from lakesync.core.clock import COUNTER_MAX, STAMP_MAX, stamp, stamp_ms
from lakesync.core.merge import EMPTY, apply, as_read, view

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from lakesync.adapters.database import PlacedDelta
    from lakesync.core.clock import Stamp
    from lakesync.core.delta import CanonicalJson, Delta
    from lakesync.core.merge import RowState

# --- points in time -------------------------------------------------------------------------------


@dataclass(frozen=True)
class AtTime:
    """A wall-clock time: the state that a reader would have seen then."""

    ms: int


@dataclass(frozen=True)
class AtNumber:
    """A snapshot id if the table has such a snapshot, else a commit stamp."""

    number: int


AsOf: TypeAlias = AtTime | AtNumber


@dataclass(frozen=True)
class Moment:
    """One snapshot of a table, with what is needed to choose one."""

    snapshot_id: int
    made_ms: int
    applied: int
    """The last commit that is in the table."""


def as_of(text: str, option: str = "--as-of") -> AsOf:
    """Parse an option's value; a time without an offset is UTC."""
    if text.isascii() and text.isdigit():
        return AtNumber(int(text))
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UsageFault(
            f"{option} {text[:40]!r} is not a point in time: give an ISO-8601 time such as "
            "2026-11-21T10:00:00Z, a snapshot id, or a commit stamp"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return AtTime(round(moment.timestamp() * 1000))


def pinned(wanted: AsOf, tables: Iterable[Iterable[Moment]]) -> AsOf:
    """Return a point in time that applies to all tables: for another table's snapshot, its time."""
    if isinstance(wanted, AtTime):
        return wanted
    for history in tables:
        for moment in history:
            if moment.snapshot_id == wanted.number:
                return AtTime(moment.made_ms)
    return wanted


def last_commit(wanted: AsOf, tables: Iterable[Iterable[Moment]]) -> Stamp:
    """Return the greatest commit stamp at a point in time; of a snapshot, its last commit."""
    if isinstance(wanted, AtTime):
        return stamp(wanted.ms, COUNTER_MAX)
    for history in tables:
        for moment in history:
            if moment.snapshot_id == wanted.number:
                return moment.applied
    return min(wanted.number, STAMP_MAX)


def chosen(wanted: AsOf, history: Iterable[Moment]) -> Moment | None:
    """Return the last snapshot of a table up to a point in time; None if it had none yet."""
    if isinstance(wanted, AtTime):
        earlier = [moment for moment in history if moment.made_ms <= wanted.ms]
    else:
        earlier = [moment for moment in history if moment.applied <= wanted.number]
    return max(earlier, key=lambda moment: moment.made_ms, default=None)


# --- cells ----------------------------------------------------------------------------------------


WON, LOST = "won", "lost"


class Cell(NamedTuple):
    """The effect of one delta on one column."""

    commit: Stamp
    delta: Delta
    column: str | None
    """The column; None for a delta without one: an insert without columns, a deletion of
    nothing."""
    before: CanonicalJson | None
    """The visible value before this commit; None if there was none."""
    after: CanonicalJson | None
    """The written value, even if it lost; None if the row was deleted."""
    effect: str
    """`WON`, or `LOST` to a write with a later stamp that was committed before."""


def cells(placed: Iterable[PlacedDelta], *, delete_wins: bool = False) -> Iterator[Cell]:
    """Yield every cell of a row's history, oldest first, as its deltas are."""
    state = EMPTY
    for position, delta in placed:
        merged = apply(state, delta)
        written = dict(delta.columns)
        was, now = (as_read(one, delete_wins=delete_wins) for one in (state, merged))
        before, after = view(was) or {}, view(now) or {}
        beside = sorted(
            name for name in before.keys() | after.keys() if before.get(name) != after.get(name)
        )
        for name in dict.fromkeys((*written, *beside)):
            was_value, is_value = before.get(name), after.get(name)
            if name in written and not _stands(now, delta, name, written[name]):
                yield Cell(position.commit, delta, name, was_value, written[name], LOST)
                if was_value == is_value:
                    continue
                # In a delete-wins table an insert also shows what won before the row was there.
            elif name in written:
                is_value = written[name]
            yield Cell(position.commit, delta, name, was_value, is_value, WON)
        if not written and not beside:
            effect = LOST if merged is state else WON
            yield Cell(position.commit, delta, None, None, None, effect)
        state = merged


def _stands(state: RowState, delta: Delta, name: str, value: CanonicalJson) -> bool:
    return state.columns.get(name) == (delta.hlc, delta.client_id, value)


def instant(stamp: Stamp) -> datetime:
    return datetime.fromtimestamp(stamp_ms(stamp) / 1000, UTC)


def moment_text(stamp: Stamp) -> str:
    return f"{instant(stamp):%Y-%m-%d %H:%M:%S.%f}"[:-3]
