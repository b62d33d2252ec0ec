"""Reads a table by difference: all rows at each poll, compared with those of the previous poll.

The previous rows are kept in the connector's storage as *ranges* of the table's key. Each range is
one object, named by its beginning, with its end and a digest of each row. A range is read whole and
compared: a row that differs is a change, a missing row is a deletion. Both get the poll's time.

Rules of reading by difference
    1. A range's changes in a poll are stored in its object before they are given. Read again in the
       same poll, they are given as stored, even if the table changed meanwhile. So a page that is
       read twice gives the same deltas.
    2. Only the database compares keys, as it defines their order.
    3. A range that has grown is split: its rows that were not read yet move to the second half,
       where they are read, or detected as deleted.

Handles a change of the key, or of its type, of a table that is read by difference. The stored
ranges are in the order of the former key. They are forgotten, all rows are read as if for the first
time, and deletions are found from the rows that the gateway has from this connector.

Rules of a changed key
    1. The table's key is stored, and is written after the old ranges are removed: after a crash
       they are removed again.
    2. The note to search for deletions is removed once all were returned.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from lakesync.connectors.port import Change, SourcePage, Unreadable, digest
from lakesync.systems.sql.table_plan import (
    asking,
    behind,
    has_key,
    page_of,
    rows_gone,
    up_to,
    without_key,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lakesync.connectors.port import Storage
    from lakesync.systems.sql.table_plan import Database, Plan, RowsThere

_DIGEST_BYTES: Final = 12
_TWICE: Final = (
    "several rows have this key, of which one is read: name columns as key that identify a row"
)
_GROWTH: Final = 2
"""How many pages of rows a range may have before it is split."""


def is_cursor(cursor: str) -> bool:
    """Return whether a cursor is of a table that is read by difference."""
    return cursor.startswith(("[", '{"gone"'))


class Range(NamedTuple):
    """The stored state of the rows behind one key, up to another."""

    rows: Mapping[str, str]
    """A digest of each row, by its id."""
    end: Sequence[Any] | None = None
    """The key of its last row; None if it goes on to the table's end."""
    poll_ms: int = 0
    """The poll in which it was last stored."""
    changed: Sequence[Sequence[Any]] = ()
    """The changes that this poll returned: row ids and values."""
    unreadable: Sequence[Sequence[str]] = ()


class Seen(NamedTuple):
    """Rows that were read."""

    rows: dict[str, str]
    changed: list[tuple[str, dict[str, Any] | None]]
    unreadable: list[tuple[str, str]]


class Ordered(Protocol):
    """A table's rows in an order in which a poll reads them: that of the key, or another."""

    def between(
        self, start: Sequence[Any] | None, end: Sequence[Any] | None, rows_max: int
    ) -> Sequence[Sequence[Any]]:
        """Return the first rows behind a position, up to another; None for no bound.

        Raises:
            Altered: the table must be planned anew; nothing was read.
        """
        ...

    def position(self, row: Sequence[Any]) -> Sequence[Any]:
        """Return the position of a row that was read."""
        ...


@dataclass(frozen=True)
class ByKey:
    """`Ordered` by the key, as the database sorts it."""

    database: Database
    cursor: Any
    plan: Plan

    def between(
        self, start: Sequence[Any] | None, end: Sequence[Any] | None, rows_max: int
    ) -> Sequence[Sequence[Any]]:
        dialect, plan = self.database.dialect, self.plan
        conditions = has_key(dialect, plan)
        if start is not None:
            conditions.append(behind(dialect, plan.bound(plan.key, start)))
        if end is not None:
            conditions.append(up_to(dialect, plan.bound(plan.key, end)))
        origin = plan.origin(dialect)
        statement = page_of(dialect, origin, plan.columns, plan.key, conditions, rows_max)
        return plan.rows(self.cursor, statement)

    def position(self, row: Sequence[Any]) -> Sequence[Any]:
        return self.plan.ends_at(self.plan.key, [row[at] for at in self.plan.key_places])


def read(
    database: Database,
    cursor: Any,
    plan: Plan,
    storage: Storage,
    after: str,
    rows_max: int,
    poll_ms: int,
) -> SourcePage:
    """Return the changes in the range behind a key: the cursor's, or the first range.

    Raises:
        Altered: the table must be planned anew; nothing was stored.
    """
    if looks_for_gone(after):
        return gone(plan, storage, after, asking(cursor, database.dialect, plan))
    page = read_range(ByKey(database, cursor, plan), plan, storage, after, rows_max, poll_ms)
    if after:
        return page
    keyless = without_key(database.dialect, cursor, plan, [])
    return replace(page, unreadable=(*page.unreadable, *keyless))


def read_range(
    ordered: Ordered, plan: Plan, storage: Storage, after: str, rows_max: int, poll_ms: int
) -> SourcePage:
    """Return the changes in the range behind a position: the cursor's, or the first range."""
    start: list[Any] | None = json.loads(after) if after else None
    path = (RANGES, digest(plan.settings.name), digest(json.dumps(start)))
    stored = storage.read(*path)
    known = Range(**stored) if stored else Range({})
    if known.poll_ms != poll_ms:
        known = _compared(ordered, plan, storage, start, known, rows_max, poll_ms)
        if known.poll_ms == poll_ms:
            storage.write(known._asdict(), *path)
    is_last = known.end is None
    following = behind_rows(storage, plan) if is_last else json.dumps(known.end)
    changes = known.changed if known.poll_ms == poll_ms else ()
    unreadable = known.unreadable if known.poll_ms == poll_ms else ()
    return SourcePage(
        tuple(Change(row_id, columns) for row_id, columns in changes),
        following,
        bool(following),
        tuple(Unreadable(row_id, reason) for row_id, reason in unreadable),
    )


def _compared(
    ordered: Ordered,
    plan: Plan,
    storage: Storage,
    start: Sequence[Any] | None,
    known: Range,
    rows_max: int,
    poll_ms: int,
) -> Range:
    """Return a range with the table's current rows; the stored one if nothing in it changed."""
    # A page of a range without a known end; otherwise all of it, unless it has grown.
    limit = rows_max if known.end is None else _GROWTH * rows_max
    rows = ordered.between(start, known.end, limit + 1)
    is_cut = len(rows) > limit
    kept = rows[:rows_max] if is_cut else rows
    seen = _seen(plan, kept, known.rows)
    unmet = {
        row_id: row_digest for row_id, row_digest in known.rows.items() if row_id not in seen.rows
    }
    end = known.end
    if is_cut:
        end = ordered.position(kept[-1])
        _hand_on(storage, plan, end, Range(unmet, known.end))
    else:
        seen.changed.extend((row_id, None) for row_id in unmet)
    if not seen.changed and not seen.unreadable and not is_cut:
        return known
    return Range(seen.rows, end, poll_ms, seen.changed, seen.unreadable)


def _hand_on(storage: Storage, plan: Plan, start: Sequence[Any], second: Range) -> None:
    """Write the second half of a split range, before the first half is stored with its new end."""
    path = (RANGES, digest(plan.settings.name), digest(json.dumps(start)))
    storage.write(second._asdict(), *path)


def _seen(plan: Plan, rows: Sequence[Sequence[Any]], known: Mapping[str, str]) -> Seen:
    seen = Seen({}, [], [])
    for row in rows:
        row_id = plan.row_id(row)
        if row_id in seen.rows:  # it would be another row at each poll
            seen.unreadable.append((row_id, _TWICE))
            continue
        try:
            columns = plan.values(row)
        except ValueError as exc:
            row_digest = _row_digest(repr(row))
            if known.get(row_id) != row_digest:
                seen.unreadable.append((row_id, str(exc)))
        else:
            row_digest = _row_digest(json.dumps(columns, sort_keys=True))
            if known.get(row_id) != row_digest:
                seen.changed.append((row_id, columns))
        seen.rows[row_id] = row_digest
    return seen


def _row_digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[: 2 * _DIGEST_BYTES]


# --- a changed key --------------------------------------------------------------------------------


RANGES: Final = "ranges"
"""The folder of the stored ranges."""
_KEYS: Final = "keys"
_LOOKING: Final = '{"gone"'


def is_same_key(storage: Storage, plan: Plan) -> bool:
    """Return whether a table's key is unchanged; else its stored ranges are forgotten."""
    path = (_KEYS, digest(plan.settings.name))
    kinds = [plan.types[plan.place(name)] for name in plan.key]
    now: dict[str, Any] = {"key": list(plan.key), "types": kinds}
    before = storage.read(*path)
    if before is not None and now == {name: before[name] for name in now}:
        return True
    if before is not None:
        seen = (RANGES, digest(plan.settings.name))
        for name in storage.names(*seen):
            storage.remove(*seen, name)
    storage.write(now | {"looksForGone": before is not None}, *path)
    return before is None


def looks_for_gone(after: str) -> bool:
    """Return whether a cursor is of the search for deletions."""
    return after.startswith(_LOOKING)


def behind_rows(storage: Storage, plan: Plan) -> str:
    """Return the cursor after the last range: empty, or that of the search for deletions."""
    kept = storage.read(_KEYS, digest(plan.settings.name)) or {}
    return json.dumps({"gone": ""}) if kept.get("looksForGone") else ""


def gone(plan: Plan, storage: Storage, after: str, rows_there: RowsThere) -> SourcePage:
    """Return deletions of rows that the gateway has and the table does not."""
    if json.loads(after)["gone"] is None:
        return ended(storage, plan)
    row_ids, following = rows_gone(plan, storage, json.loads(after)["gone"], rows_there)
    changes = tuple(Change(row_id, None) for row_id in row_ids)
    return SourcePage(changes, json.dumps({"gone": following or None}), has_more=True)


def ended(storage: Storage, plan: Plan) -> SourcePage:
    """End the search for deletions: all of them are durable."""
    path = (_KEYS, digest(plan.settings.name))
    storage.write(storage.read(*path) | {"looksForGone": False}, *path)
    return SourcePage((), "", has_more=False)
