"""Moves a polled flow's cursors back, to deliver changes since a time again.

A cursor is never moved forward, so unread rows are not skipped, and a table whose first read is not
complete stays where it is. A source without change times is refused. Law Y5:
``docs/spec/flows.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lakesync.connectors.port import FEED
from lakesync.connectors.registry import configured, connector_type, tables_of
from lakesync.connectors.state import state_from
from lakesync.core.clock import stamp_ms
from lakesync.core.flows import DatabaseSource
from lakesync.errors import Conflict, ValidationFailed
from lakesync.flows.ledger_place import RESTORED, begun_at, place_from

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from lakesync.core.clock import Stamp
    from lakesync.core.flows import ConnectorSource
    from lakesync.ports import StoredConnector

NO_TIME_IN_GATEWAY: Final = (
    "a flow from the gateway cannot begin at a time, as its rows have the times of their edits, "
    "which may be long before they arrived; leave it out to deliver everything again: existing "
    "rows stay as they are"
)
"""The reason why no flow from a gateway can begin at a time."""


def check_not_behind(
    source: ConnectorSource | DatabaseSource, stored: StoredConnector | None
) -> None:
    """Refuse to forget the cursor of a source that is now older than the cursor.

    Raises:
        Conflict: it was restored from a backup.
    """
    cursors = state_from(stored.state).cursors.values() if stored else ()
    is_kept = isinstance(source, DatabaseSource)
    if is_kept and any(one and place_from(one).step == RESTORED for one in cursors):
        raise Conflict(
            "its source was restored from a backup, and is not as far as it was read: once "
            "something newer is committed there, all is read again by itself"
        )


def cursors_since(
    source: ConnectorSource | DatabaseSource,
    wanted: Collection[str],
    since: Stamp,
    secrets: Mapping[str, str],
    cursors: Mapping[str, str],
) -> dict[str, str]:
    """Return the new cursors of the tables whose cursors move.

    Args:
        source: the polled source.
        wanted: the flow's tables, by their names here; none for all.
        since: the commit after which, or the time at which, to begin.
        secrets: the source's.
        cursors: the current cursors; none for a table that was not read yet.

    Raises:
        ValidationFailed: the source cannot begin at a time.
    """
    if isinstance(source, DatabaseSource) and source.plain:
        raise ValidationFailed(
            "tables of other writers are read from snapshot to snapshot, and cannot begin at a "
            "time; leave it out to deliver everything again",
            field="from",
        )
    if isinstance(source, DatabaseSource):
        moved = {table: begun_at(cursor, since) for table, cursor in cursors.items() if cursor}
    else:
        kind = connector_type(source.type)
        if kind.begins_at is None:
            raise ValidationFailed(
                f"a source of the type {source.type} cannot begin at a time; leave it out to "
                "bring everything again",
                field="from",
            )
        settings = configured(kind, {**source.configuration, **secrets})
        at_us = stamp_ms(since) * 1_000
        moved = {
            name: kind.begins_at(settings, name, cursors.get(name, ""), at_us)
            for name, table in tables_of(kind, settings).items()
            if not wanted or table in wanted or name == FEED
        }
    return {table: cursor for table, cursor in moved.items() if cursor != cursors.get(table, "")}
