"""A database that LakeSync writes, read as a connector's source: its rows, then its history.

A row that a commit changed is returned whole, in its current state, and stamped with that commit.
So changes arrive in the order of commits, whatever their writers' stamps, and a page that is read
twice has the same or newer rows. If the history was forgotten, rows are read again, and deletions
are found from the rows that the flow delivered. For a row that was deleted and inserted again, a
deletion is returned first: otherwise it would keep the former values of columns that the insert
does not name.

Law Y5: ``docs/spec/flows.md``.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lakesync.adapters.batches import values_of
from lakesync.adapters.database import ORDINAL_END, Position, SideBySide
from lakesync.connectors.port import Change, SourceColumn, SourcePage, SourceTable, Stretch
from lakesync.core.delta import Op
from lakesync.core.wording import plural
from lakesync.errors import AdapterRefused, CursorExpired, LakeSyncError, ValidationFailed
from lakesync.result import Err, Ok

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from lakesync.adapters.database import DatabaseAdapter
    from lakesync.connectors.port import TellsBrought
    from lakesync.core.clock import Stamp
    from lakesync.core.merge import RowState
    from lakesync.result import Result


class LedgerSource:
    """Reads a database that LakeSync writes; a `lakesync.connectors.port.Connector`.

    Args:
        database: the source.
        tables: the tables that must exist.
        brought: lists the rows that the flow delivered.
    """

    def __init__(
        self, database: DatabaseAdapter, tables: Sequence[str], brought: TellsBrought
    ) -> None:
        self._database = database
        self._tables = tables
        self._brought = brought

    def check(self) -> Result[str, LakeSyncError]:
        """Check that the tables exist."""

        def said(there: Any) -> Result[str, LakeSyncError]:
            missing = sorted({*self._tables} - there.keys())
            if missing:
                return Err(ValidationFailed(f"it has no table {', '.join(missing)}"))
            return Ok(f"It has what is asked for: {plural(len(self._tables), 'table')}.")

        return self._database.tables().and_then(said)

    def discover(self) -> Result[tuple[SourceTable, ...], LakeSyncError]:
        """Return the tables, with the columns of their schemas."""
        return self._database.tables().map(
            lambda there: tuple(
                SourceTable(
                    name,
                    tuple(SourceColumn(one.name, one.type, one.nullable)
                          for one in (schema.columns if schema else ())),
                    ("row_id",),
                )
                for name, schema in there.items()
            )
        )  # fmt: skip

    def read(
        self,
        table: str,
        cursor: str,
        *,
        rows_max: int,
        poll_ms: int,  # noqa: ARG002 - commits are dated
    ) -> Result[SourcePage, LakeSyncError]:
        """Return the rows that changed after a cursor."""
        try:
            place = place_from(cursor) if cursor else self._begin(table)
            if place is None:
                return Ok(SourcePage((), cursor, has_more=False))  # it is being filled
            if place.step == ROWS:
                return Ok(self._rows(table, place, rows_max))
            if place.step == RESTORED:
                return Ok(self._restored(table, place))
            if place.step == CHECK:
                return Ok(self._gone(table, place))
            return Ok(self._history(table, place, rows_max))
        except LakeSyncError as error:
            return Err(error)

    def ahead(
        self,
        table: str,
        cursor: str,
        rows: int,
        *,
        poll_ms: int,  # noqa: ARG002 - as `Divisible`
    ) -> Result[Stretch, LakeSyncError]:
        """Return a stretch of a table's rows; only the first reading of rows is divided."""
        place = place_from(cursor) if cursor else None
        if place is None or place.step != ROWS or not isinstance(self._database, SideBySide):
            return Ok(Stretch(cursor, ""))
        return self._database.row_ahead(table, place.at, rows).map(
            lambda row_id: Stretch(cursor, place._replace(at=row_id).text() if row_id else "")
        )

    def read_stretch(
        self,
        table: str,
        cursor: str,
        ends: str,
        *,
        rows_max: int,
        poll_ms: int,  # noqa: ARG002 - as `Divisible`
    ) -> Result[SourcePage, LakeSyncError]:
        """Return a page of a stretch."""
        place, last = place_from(cursor), place_from(ends).at.encode()
        try:
            page = self._database.rows_after(table, place.at, rows_max).unwrap()
            within = {row: state for row, state in page.rows.items() if row.encode() <= last}
            changes = self._changes(table, *_as_rows(within, place))
        except LakeSyncError as error:
            return Err(error)
        following = place._replace(at=max(within, key=str.encode, default="")).text()
        has_more = page.has_more and len(within) == len(page.rows) and following != ends
        return Ok(SourcePage(changes, following if has_more else ends, has_more, is_dated=True))

    def close(self) -> None:
        """Close the connection."""
        self._database.close()

    def _mark(self, table: str) -> Stamp:
        """Return a table's mark; 0 while it is being filled.

        Raises:
            AdapterRefused: there is no such table; it must not be treated as an empty one.
        """
        mark = self._database.mark(table).unwrap()
        if not mark and table not in self._database.tables().unwrap():
            raise AdapterRefused(f"it has no table {table}, or not yet")
        return mark

    def _begin(self, table: str) -> Place | None:
        mark = self._mark(table)
        first = self._brought(table, "")
        return Place(ROWS, mark, "", bool(first.row_ids or first.place)) if mark else None

    def _rows(self, table: str, place: Place, rows_max: int) -> SourcePage:
        page = self._database.rows_after(table, place.at, rows_max).unwrap()
        changes = self._changes(table, *_as_rows(page.rows, place))
        if page.has_more:
            following = place._replace(at=max(page.rows, key=str.encode))
        elif place.again:
            following = Place(CHECK, place.commit)
        else:
            following = Place(HISTORY, place.commit, ORDINAL_END)
        return SourcePage(changes, following.text(), has_more=True, is_dated=True)

    def _gone(self, table: str, place: Place) -> SourcePage:
        """Return deletions of delivered rows that no longer exist."""
        if not self._mark(table):
            return SourcePage((), place.text(), has_more=False)  # it is being filled again
        brought = self._brought(table, place.at)
        there = self._database.rows_of(table, brought.row_ids).unwrap() if brought.row_ids else {}
        changes = tuple(
            Change(row_id, None, hlc=place.commit)
            for row_id in brought.row_ids
            if row_id not in there
        )
        following = Place(CHECK, place.commit, brought.place)
        if not brought.place:
            following = Place(HISTORY, place.commit, ORDINAL_END)
        return SourcePage(changes, following.text(), has_more=True, is_dated=True)

    def _history(self, table: str, place: Place, rows_max: int) -> SourcePage:
        since = Position(place.commit, place.at)
        answer = self._database.query_deltas_since(table, since, rows_max)
        if isinstance(answer, Err) and isinstance(answer.error, CursorExpired):
            begins = self._begin(table)
            if begins is None:
                return SourcePage((), place.text(), has_more=False)
            return SourcePage((), begins._replace(again=True).text(), has_more=True)
        page = answer.unwrap()
        if not page.deltas and 0 < self._mark(table) < place.commit:
            # Later commits are lost at the source: reported until it can be repaired.
            return SourcePage((), place._replace(step=RESTORED, at="").text(), has_more=True)
        commits = {placed.delta.row_id: placed.position.commit for placed in page.deltas}
        states = self._database.rows_of(table, list(commits)).unwrap() if commits else {}
        deleted = {one.delta.row_id for one in page.deltas if one.delta.op is Op.DELETE}
        rows = {row_id: (states.get(row_id), commit) for row_id, commit in commits.items()}
        changes = self._changes(table, rows, deleted)
        following = Place(HISTORY, *page.position)
        return SourcePage(changes, following.text(), page.has_more, is_dated=True)

    def _restored(self, table: str, place: Place) -> SourcePage:
        """Read the rows again once the source is newer than everything that was delivered.

        Raises:
            CursorExpired: it is still older.
        """
        begins = self._begin(table)
        if begins is None or begins.commit <= place.commit:
            raise CursorExpired(
                f"{table} was read further than its database goes, which was restored from a "
                "backup; once something newer is committed there, all is read again and what is "
                "gone is deleted: deliver to that database again, or commit to the table"
            )
        return SourcePage((), begins._replace(again=ANEW).text(), has_more=True)

    def _changes(
        self,
        table: str,
        rows: Mapping[str, tuple[RowState | None, Stamp]],
        deleted: Collection[str],
    ) -> tuple[Change, ...]:
        """Return rows as changes, each with its commit.

        Args:
            table: their table.
            rows: their states, with the commits.
            deleted: rows that were deleted after they may have been delivered.
        """
        schema = self._database.tables().unwrap().get(table) if rows else None
        changes: list[Change] = []
        for row_id, (state, commit) in rows.items():
            values = None if state is None else values_of(state, schema)
            if values is not None and row_id in deleted:
                changes.append(Change(row_id, None, hlc=commit - 1))
            changes.append(Change(row_id, values, hlc=commit))
        return tuple(changes)


def _as_rows(
    states: Mapping[str, RowState], place: Place
) -> tuple[dict[str, tuple[RowState | None, Stamp]], set[str]]:
    """Return rows as of a place, and the ids of those that may have lost columns since delivery."""
    deleted = {
        row_id for row_id, state in states.items()
        if place.again == ANEW or (place.again and state.deleted)
    }  # fmt: skip
    return {row_id: (state, place.commit) for row_id, state in states.items()}, deleted


# --- the cursor -----------------------------------------------------------------------------------


ROWS: Final = "rows"
CHECK: Final = "check"
HISTORY: Final = "history"
RESTORED: Final = "restored"
ANEW: Final = 2
"""Value of `Place.again`: the delivered version of any row may have been newer than this one.
Earlier releases treat it as true."""


class Place(NamedTuple):
    """A position in a table; as JSON it is the cursor."""

    step: str
    """`ROWS`, then `CHECK` (delivered rows that no longer exist are deleted), then `HISTORY`.
    `RESTORED`: the source was restored to before its last read commit, and is waited for until it
    has a later one."""
    commit: Stamp
    """For rows, the commit as of which they are read; for the history, the last commit read."""
    at: Any = ""
    """For `ROWS` the last id, for `CHECK` a place among the delivered rows, else the ordinal."""
    again: int = False
    """Whether rows were delivered before these were read; or `ANEW`."""

    def text(self) -> str:
        """Return the cursor."""
        return json.dumps(self, separators=(",", ":"))


def place_from(cursor: str) -> Place:
    """Parse a cursor of `Place.text`."""
    return Place(*json.loads(cursor))


def begun_at(cursor: str, commit: Stamp) -> str:
    """Return the cursor behind a commit; the current one if it is earlier, or reads rows."""
    place = place_from(cursor)
    if place.step != HISTORY or place.commit <= commit:
        return cursor
    return Place(HISTORY, commit, ORDINAL_END).text()
