"""`--as-of`: a point in a table's past, given as a time, a snapshot id or a commit stamp."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeAlias

from lakesync.cli.faults import UsageFault
from lakesync.core.clock import COUNTER_MAX, STAMP_MAX, stamp

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lakesync.core.clock import Stamp


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
    """Parse an option's value; a time without an offset is UTC.

    Raises:
        UsageFault: it is neither a time, a snapshot id nor a stamp.
    """
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
