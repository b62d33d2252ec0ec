"""Reads a captured table whole, as of its baseline, in key order and without a lock.

First its rows are read; then the rows that the gateway has from this connector are checked, to
detect deletions. Both get the baseline's time: all changes from the feed since then are later.

Law N13: ``docs/spec/connectors.md``.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from typing import TYPE_CHECKING, Any

from lakesync.connectors.port import FEED, Change, SourcePage, Stretch, Unreadable
from lakesync.connectors.sql.sql_source import SqlConnector
from lakesync.connectors.sql.table_plan import asking, behind, page_of, rows_gone, up_to
from lakesync.errors import AdapterFailed
from lakesync.result import Ok

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lakesync.adapters.sql.dialect import Dialect
    from lakesync.connectors.port import Storage
    from lakesync.connectors.sql.captured_tables import Baseline
    from lakesync.connectors.sql.table_plan import Plan
    from lakesync.errors import LakeSyncError
    from lakesync.result import Result


def read(
    cursor: Any,
    dialect: Dialect,
    plan: Plan,
    mark: Baseline,
    storage: Storage,
    after: str,
    rows_max: int,
    wait: Callable[[Any, str], None],
) -> SourcePage:
    """Return a table's next rows, or the next deletions; nothing once all are read.

    Before the first page, ``wait`` is called with the baseline's ``xid``: it waits until all
    earlier transactions are visible.

    Raises:
        AdapterTimedOut: they are not visible yet.
    """
    at: dict[str, Any] = json.loads(after) if after.startswith('{"us"') else {}
    if at.get("us") != mark.us:
        wait(cursor, mark.xid)
        at = {"us": mark.us}
    if at.get("done"):
        return SourcePage((), after, has_more=False)
    if "gone" in at:
        return _gone(cursor, dialect, plan, mark, storage, at["gone"])
    return _rows(cursor, dialect, plan, mark, at.get("key"), rows_max)


def ahead(
    cursor: Any, dialect: Dialect, plan: Plan, mark: Baseline, after: str, rows: int
) -> Stretch:
    """Return a stretch of the next rows behind a cursor; none before the first page is read."""
    at: dict[str, Any] = json.loads(after) if after.startswith('{"us"') else {}
    if at.get("us") != mark.us or "key" not in at:
        return Stretch(after, "")
    where = [behind(dialect, plan.bound(plan.key, at["key"]))]
    key = plan.key
    cursor.execute(*page_of(dialect, plan.origin(dialect), key, key, where, 1, skipped=rows - 1))
    last = plan.source.rows(cursor)
    if not last:
        return Stretch(after, "")
    return Stretch(after, json.dumps({"us": mark.us, "key": plan.ends_at(key, last[0])}))


def read_stretch(
    cursor: Any,
    dialect: Dialect,
    plan: Plan,
    mark: Baseline,
    after: str,
    ends: str,
    rows_max: int,
) -> SourcePage:
    """Return the next rows of a table up to where a stretch ends.

    Raises:
        AdapterFailed: meanwhile the table is read as of another baseline.
    """
    at, end = json.loads(after), json.loads(ends)
    if at["us"] != mark.us:
        raise AdapterFailed(f"{plan.settings.name} is being read anew")
    key, last_key = at["key"], end["key"]
    changes, unreadable, last = _page(cursor, dialect, plan, mark, key, last_key, rows_max)
    following = json.dumps({"us": mark.us, "key": last}) if last else ends
    return SourcePage(changes, following, has_more=bool(last), unreadable=unreadable, is_dated=True)


def _rows(
    cursor: Any,
    dialect: Dialect,
    plan: Plan,
    mark: Baseline,
    key: Sequence[Any] | None,
    rows_max: int,
) -> SourcePage:
    changes, unreadable, last = _page(cursor, dialect, plan, mark, key, None, rows_max)
    rest: dict[str, Any] = {"key": last} if last else {"gone": ""}
    after = json.dumps({"us": mark.us} | rest)
    return SourcePage(changes, after, has_more=True, unreadable=unreadable, is_dated=True)


def _page(
    cursor: Any,
    dialect: Dialect,
    plan: Plan,
    mark: Baseline,
    key: Sequence[Any] | None,
    last_key: Sequence[Any] | None,
    rows_max: int,
) -> tuple[tuple[Change, ...], tuple[Unreadable, ...], list[Any]]:
    """Return rows between two keys, and the last one's key; no key after the end."""
    conditions = [] if key is None else [behind(dialect, plan.bound(plan.key, key))]
    if last_key is not None:
        conditions.append(up_to(dialect, plan.bound(plan.key, last_key)))
    origin = plan.origin(dialect)
    statement = page_of(dialect, origin, plan.columns, plan.key, conditions, rows_max)
    cursor.execute(*statement)
    rows = plan.source.rows(cursor)
    changes: list[Change] = []
    unreadable: list[Unreadable] = []
    for row in rows:
        row_id = plan.row_id(row)
        try:
            changes.append(Change(row_id, plan.values(row), mark.us))
        except ValueError as exc:
            unreadable.append(Unreadable(row_id, str(exc)))
    is_full = len(rows) >= rows_max
    last = plan.ends_at(plan.key, [rows[-1][at] for at in plan.key_places]) if is_full else []
    return tuple(changes), tuple(unreadable), last


def _gone(
    cursor: Any, dialect: Dialect, plan: Plan, mark: Baseline, storage: Storage, place: str
) -> SourcePage:
    row_ids, following = rows_gone(plan, storage, place, asking(cursor, dialect, plan))
    changes = tuple(Change(row_id, None, mark.us) for row_id in row_ids)
    rest = {"gone": following} if following else {"done": True}
    after = json.dumps({"us": mark.us} | rest)
    return SourcePage(changes, after, has_more=bool(following), is_dated=True)


# --- stretches ------------------------------------------------------------------------------------


class SnapshotConnector(SqlConnector):
    """A connector whose feed is one sequence, and whose tables are first read whole."""

    @abstractmethod
    def _marked(self, cursor: Any, name: str) -> tuple[Plan, Baseline] | None:
        """Return how a table is read whole, and its baseline; None if it need not be read.

        Raises:
            AdapterRefused, ValidationFailed: it cannot be read.
        """

    def ahead(
        self, table: str, cursor: str, rows: int, *, poll_ms: int
    ) -> Result[Stretch, LakeSyncError]:
        """Return a stretch of a table that is being read whole; the feed is not divided."""
        del poll_ms
        if table == FEED:
            return Ok(Stretch(cursor, ""))

        def work(connected: Any) -> Stretch:
            marked = self._marked(connected, table)
            if marked is None:
                return Stretch(cursor, "")
            return ahead(connected, self._database.dialect, *marked, cursor, rows)

        return self._run(work)

    def read_stretch(
        self, table: str, cursor: str, ends: str, *, rows_max: int, poll_ms: int
    ) -> Result[SourcePage, LakeSyncError]:
        """Return a page of a stretch."""
        del poll_ms

        def work(connected: Any) -> SourcePage:
            marked = self._marked(connected, table)
            if marked is None:
                raise AdapterFailed(f"{table} is to be read anew, once its changes are told again")
            return read_stretch(connected, self._database.dialect, *marked, cursor, ends, rows_max)

        return self._run(work)
