"""Lets a row come back that was found deleted by comparing, whatever its own time.

A deletion that a source reports has a time of its own. One that is found because a row is missing
has none, and is stamped with its poll. If the row comes back unchanged, because permission hid it,
or a filter or an archive, its own time is earlier than that stamp, and the deletion would win.

Rules of this module
    1. The ids of such deletions are noted in the connector's storage before their page is pushed,
       and stay when the connector is reset.
    2. A noted row that comes with an earlier time is stamped just behind the deletion. The stamp is
       noted before its page is pushed, so a page that is read twice gives the same deltas. A later
       change whose time is earlier, too, gets a later stamp.
    3. Only rows that changed before the table's latest deletion are looked up: of most pages none.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeAlias

from lakesync.connectors.storage import digest
from lakesync.core.clock import stamp

if TYPE_CHECKING:
    from lakesync.connectors.port import Change, SourcePage
    from lakesync.connectors.state import PollState
    from lakesync.connectors.storage import Storage

    Noted: TypeAlias = list[int]
    """Microseconds since 1970: when a row was found deleted, the time of the row's version that
    came back since (0: none did), and the stamp that this version got."""

DELETIONS: Final = "deletions"
"""The folder of the notes."""
NOTED_DELETIONS_MAX: Final = 20_000
"""Deletions that are noted in one of the 16 objects of a table; of more, the newest."""
_US: Final = 1_000


class Deletions:
    """The noted deletions of one connector, during one poll or webhook.

    Args:
        storage: the connector's.
        may_note: False if another process may be polling: then nothing is written.
    """

    def __init__(self, storage: Storage, *, may_note: bool = True) -> None:
        self._storage = storage
        self._may_note = may_note
        self._objects: dict[tuple[str, ...], dict[str, Noted]] = {}
        self._changed: set[tuple[str, ...]] = set()

    def dated(self, state: PollState, source: str, page: SourcePage, poll_ms: int) -> SourcePage:
        """Return a page in which no row is older than its own deletion; note the page's deletions.

        Args:
            state: the connector's; when each table last had such a deletion.
            source: the table that was read.
            page: what was read of it. If its connector dates its changes itself, it is unchanged.
            poll_ms: when the poll began as of which the table is read.
        """
        if page.is_dated or not (state.deleted or any(map(_is_by_comparing, page.changes))):
            return page
        changes = []
        for change in page.changes:
            table = change.table or source
            if _is_by_comparing(change):
                self._note(state, table, change.row_id, poll_ms)
                changes.append(change)
            else:
                changes.append(self._behind_deletion(state, table, change))
        self._write()
        return replace(page, changes=tuple(changes))

    def _behind_deletion(self, state: PollState, table: str, change: Change) -> Change:
        changed_us = change.changed_us
        # A millisecond more than the deletion: what came back was stamped just behind it.
        behind_us = (state.deleted.get(table, -1) + 1) * _US
        if changed_us is None or change.columns is None or changed_us > behind_us:
            return change
        path = _path(table, change.row_id)
        noted = self._read(path).get(change.row_id)
        if noted is None or changed_us > max(noted[0], noted[2]) or changed_us < noted[1]:
            return change
        if changed_us > noted[1] or not noted[2]:
            noted[1:] = [changed_us, max(noted[0], noted[2]) + 1]
            self._changed.add(path)
        return change._replace(hlc=stamp(*divmod(noted[2], _US)))

    def _note(self, state: PollState, table: str, row_id: str, poll_ms: int) -> None:
        path = _path(table, row_id)
        self._read(path)[row_id] = [poll_ms * _US, 0, 0]
        self._changed.add(path)
        state.deleted[table] = max(state.deleted.get(table, 0), poll_ms)

    def _read(self, path: tuple[str, ...]) -> dict[str, Noted]:
        if path not in self._objects:
            self._objects[path] = self._storage.read(*path) or {}
        return self._objects[path]

    def _write(self) -> None:
        if not self._may_note:
            return
        for path in sorted(self._changed):
            noted = self._objects[path]
            if len(noted) > NOTED_DELETIONS_MAX:
                newest = sorted(noted.items(), key=lambda each: each[1][0])
                noted = self._objects[path] = dict(newest[-NOTED_DELETIONS_MAX:])
            self._storage.write(noted, *path)
        self._changed.clear()


def _path(table: str, row_id: str) -> tuple[str, ...]:
    return (DELETIONS, digest(table), digest(row_id)[0])


def _is_by_comparing(change: Change) -> bool:
    return change.columns is None and change.changed_us is None and change.hlc is None
