"""Re-sync: when other rules or claims decide, the tables concerned are read again, and no others.

The client hands back the scope of what it holds. Each page brings rows, as they are, of the first
table whose digest differs, and names a scope in which the tables that are done have their new
digest: so nothing needs to be remembered here, and a second change in the middle leads to just the
tables that it concerns. Behind the last page the log goes on where the client had read it, and none
of it is read twice. Law V10: ``docs/spec/visibility.md``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from lakesync.core.delta import is_identifier
from lakesync.core.messages import PullPage, Resync
from lakesync.core.scope import NOTHING, OTHERS, UNKNOWN, Scope, digest_of, scope_of
from lakesync.errors import CursorExpired
from lakesync.gateway.scan import scan_settled, visible_rows
from lakesync.gateway.snapshot import is_place
from lakesync.log.read_barrier import read_all
from lakesync.wire.records import encode_records

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lakesync.core.clock import Stamp
    from lakesync.core.delta import Delta
    from lakesync.core.messages import Pull
    from lakesync.gateway.rule_filter import RuleFilter
    from lakesync.log.read_barrier import FencedLog
    from lakesync.ports import Buffer

_SCANS_MAX: Final = 16
"""Reads of rows, of 1 MB at the most, in which one request looks for what is seen."""
_LOG_DELTAS_MAX: Final = 10_000
_MARK: Final = "~"
_PARTS: Final = 5
_BEGIN_ANEW: Final = (
    "your rules or your claims changed since this cursor; fetch a snapshot, and keep your unsent "
    "changes"
)


class _Place(NamedTuple):
    """Where a re-sync goes on."""

    unit: str
    """The table, or `OTHERS`."""
    table: str = ""
    place: str = ""
    """Where in it; see `lakesync.ports.Buffer.scan_rows`."""


def is_resync(snapshot: str) -> bool:
    """Tell whether a client's `Pull.snapshot` is of a re-sync."""
    return snapshot.partition("|")[2].startswith(_MARK)


class Resyncs:
    """Reads tables again for any gateway."""

    def __init__(self, buffer: Buffer) -> None:
        self._buffer = buffer

    def page(self, log: FencedLog, pull: Pull, rule_filter: RuleFilter) -> PullPage:
        """Give the next rows of the tables that the client's scope shows otherwise.

        It holds at most as many rows as deltas were asked for.

        Raises:
            CursorExpired: the tables cannot be told, or hold events: everything begins anew.
        """
        held, now = scope_of(pull.scope), rule_filter.scope
        self._check_readable(log, pull.since, held, now)
        aim = digest_of(now.text())
        at = _place_of(pull.snapshot, aim)
        begun: list[str] = []
        deltas: list[Delta] = []
        top = log.top
        for _ in range(_SCANS_MAX):
            units = now.changed(held)
            if deltas or not units:
                break
            if at is None or at.unit != units[0]:
                begun.append(units[0])
                held = _telling(held, now).marked(units[0], UNKNOWN)
                at = self._first(log, units[0], held, now)
            if at.table:
                found = scan_settled(
                    self._buffer, log, rule_filter, at.table, at.place, pull.deltas_max
                )
                deltas += visible_rows(rule_filter, at.table, found)
                top = max([top, *(row.commit for _, row in found.rows)])
                at = self._next(log, at, found.place, held, now)
            if not at.table:
                held = held.marked(at.unit, now.of(at.unit))
        done = not now.changed(held)
        scope = now.text() if done else held.text()
        runs = (encode_records(deltas),) if deltas else ()
        return PullPage(
            runs, len(deltas), top, has_more=True, epoch=log.epoch, scope=scope,
            snapshot=_token(pull.since, aim, None if done else at),
            resync=_resync(begun, held, now, log.config.tombstone_horizons),
        )  # fmt: skip

    def _check_readable(self, log: FencedLog, since: Stamp, held: Scope, now: Scope) -> None:
        """Refuse what cannot be read again table by table."""
        units = now.changed(held)
        seen = [unit for unit in units if now.of(unit) != NOTHING]
        # Of events the log is all there is. A scope that was too long tells no tables.
        events = any(log.config.appends(unit) for unit in seen)
        told = held.is_told and now.is_told
        if told and OTHERS in seen:
            named = {*held.tables, *now.tables}
            known = self._tables(log)
            others = (known | self._unflushed(log, since)) - named
            # A table that was never flushed, and that no schema names, is known to the log alone.
            told = others <= known
            events = events or any(log.config.appends(table) for table in others)
        if events or not told:
            raise CursorExpired(_BEGIN_ANEW, field="scope")

    def _tables(self, log: FencedLog) -> set[str]:
        return {*self._buffer.flushed_tables(log.gateway), *log.config.schemas}

    def _unflushed(self, log: FencedLog, until: Stamp) -> set[str]:
        """Give the tables that were changed between the watermark and a cursor."""
        found: set[str] = set()
        watermark = self._buffer.flush_state(log.gateway).watermark
        for entry in read_all(self._buffer, log, (watermark, until), _LOG_DELTAS_MAX):
            found.update(entry.tables)
        return found

    def _first(self, log: FencedLog, unit: str, held: Scope, now: Scope) -> _Place:
        if now.of(unit) == NOTHING:
            return _Place(unit)
        return _Place(unit, unit) if unit else self._next(log, _Place(unit), "", held, now)

    def _next(self, log: FencedLog, at: _Place, place: str, held: Scope, now: Scope) -> _Place:
        """Give what follows: in the same table, or in the next of the unit; no table at its end."""
        if place:
            return at._replace(place=place)
        if at.unit:
            return _Place(at.unit)
        others = sorted(self._tables(log) - {*held.tables, *now.tables})
        return _Place(at.unit, next((name for name in others if name > at.table), ""))


def _telling(held: Scope, now: Scope) -> Scope:
    """Give a scope that names whatever either does, before its `OTHERS` change."""
    return Scope(held.others, {table: held.of(table) for table in {*held.tables, *now.tables}})


def _resync(
    begun: list[str], held: Scope, now: Scope, horizons: Mapping[str, Stamp]
) -> Resync | None:
    if not begun:
        return None
    tables = tuple(unit for unit in begun if unit != OTHERS)
    named = tuple(sorted({*held.tables, *now.tables})) if OTHERS in begun else None
    # A client may hold what it wrote into a row that it could not see being deleted. Of tables that
    # it does not see it is told nothing, and nothing of them is brought.
    concerned = Resync(tables, named)
    told = {
        table: horizon
        for table, horizon in horizons.items()
        if concerned.concerns(table) and now.of(table) != NOTHING
    }
    return replace(concerned, tombstone_horizons=told)


def _token(since: Stamp, aim: str, at: _Place | None) -> str:
    place = "|".join(at) if at else "||"
    return f"{since:x}|{_MARK}{aim}|{place}"


def _place_of(snapshot: str, aim: str) -> _Place | None:
    """Read where a re-sync goes on; None if it has to begin, because something else is aimed at."""
    parts = snapshot.split("|", 4)
    if len(parts) != _PARTS or parts[1] != _MARK + aim:
        return None
    found = _Place(*parts[2:])
    is_table = is_identifier(found.table) and found.unit in {OTHERS, found.table}
    return found if is_table and is_place(found.place) else None
