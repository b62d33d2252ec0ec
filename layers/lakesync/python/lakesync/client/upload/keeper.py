"""What an app sees of the outbox and of conflicts, and does about refused and lost edits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakesync.client.recovery.rebind import rebind
from lakesync.client.storage.editor import Editor
from lakesync.client.storage.edits import amend
from lakesync.client.storage.resolve import resolve
from lakesync.result import Result, heard

if TYPE_CHECKING:
    import threading
    from collections.abc import Mapping

    from lakesync.client.recovery.rebind import KeepEdits
    from lakesync.client.storage.conflicts import LostWrite
    from lakesync.client.storage.file import ClientFile
    from lakesync.client.storage.resolve import Keep
    from lakesync.client.sync import Syncer
    from lakesync.client.upload.entries import OutboxEntry
    from lakesync.core.delta import Delta
    from lakesync.errors import LakeSyncError


class OutboxKeeper(Editor):
    """The part of a client that has an outbox."""

    _file: ClientFile
    _syncer: Syncer
    edited: threading.Event

    def pending(self) -> Result[list[OutboxEntry], LakeSyncError]:
        """Return the edits that the gateway is not known to hold, oldest first."""
        return self._attempt(lambda: self._file.entries(quarantined=False))

    def quarantined(self) -> Result[list[OutboxEntry], LakeSyncError]:
        """Return the refused edits, with code and reason; their values stay in the rows."""
        return self._attempt(lambda: self._file.entries(quarantined=True))

    def retry(self, delta_id: str) -> Result[Delta, LakeSyncError]:
        """Let the next push send a quarantined edit again; ``NOT_FOUND`` if there is none."""
        result = self._attempt(lambda: self._file.retry(delta_id))
        self.edited.set()
        return heard(result, f"retry of {delta_id!r}")

    def amend(self, delta_id: str, columns: Mapping[str, object]) -> Result[Delta, LakeSyncError]:
        """Replace a quarantined edit by a new one, with other values for some of its columns.

        The new edit is made now, and the next push sends it. Columns that ``columns`` does not name
        keep the old edit's values, unless they were overwritten since. ``NOT_FOUND`` if there is no
        such edit; an ``Err`` changes nothing.
        """
        result = self._attempt(lambda: amend(self._file, delta_id, columns))
        self.edited.set()
        return heard(result, f"amending of {delta_id!r}")

    def discard(self, delta_id: str) -> Result[Delta, LakeSyncError]:
        """Drop a pending or quarantined edit; its row becomes what the other edits make of it.

        A pending edit whose push is in flight, or was not answered, may have arrived: then the next
        pull brings it back. ``NOT_FOUND`` if the outbox does not hold it.
        """
        result = self._attempt(lambda: self._file.discard(delta_id))
        return heard(result, f"discard of {delta_id!r}")

    def clear_outbox(self) -> Result[int, LakeSyncError]:
        """Drop all pending and quarantined edits: rows become what they are without them.

        What is in flight, or was not answered, may have arrived: as for `discard`. Actions stay;
        `Actions.clear` drops those.

        Returns:
            The number of edits that were dropped.
        """
        return heard(self._attempt(self._file.clear_outbox), "clear_outbox")

    def rebind(self, keep: KeepEdits) -> Result[int, LakeSyncError]:
        """Give the file to another gateway: the next one that this client's transport reaches.

        Without this, a file is bound to the gateway that answered first, and any other is refused
        with ``ANOTHER_GATEWAY``. Everything of the new gateway is read from the start, and rows
        that it lacks go. Actions that have not ended become dead letters; conflicts go.

        Args:
            keep: ``edits`` to push the edits that wait to the new gateway; refused ones stay
                refused. ``nothing`` to give all of them up.

        Returns:
            The number of edits that were kept, or given up.
        """

        def rebound() -> int:
            with self._syncer.alone(), self._file.database.transaction():
                return rebind(self._file, keep)

        result = self._attempt(rebound)
        self.edited.set()
        return heard(result, "rebind")

    def conflicts(self) -> Result[list[LostWrite], LakeSyncError]:
        """Return the conflicts that the app has not resolved, oldest first.

        They are what `on_conflict` reports, kept in the file; at most `CONFLICTS_MAX` of them.
        """
        return self._attempt(self._file.listed_conflicts)

    def resolve(
        self, conflict_id: int, keep: Keep, value: object = None
    ) -> Result[Delta | None, LakeSyncError]:
        """Resolve a conflict, by its ``id``: it is no longer listed.

        ``mine`` and ``theirs`` choose one of its values, ``new`` writes ``value``. If the row shows
        the chosen one, or a later one took the place of what lost, nothing is written; otherwise an
        edit is made now, and returned. A deletion that is chosen deletes the row, and a value of a
        row that is gone inserts it with that column. ``NOT_FOUND`` if there is no such conflict.
        """
        result = self._attempt(lambda: resolve(self._file, conflict_id, keep, value))
        self.edited.set()
        return heard(result, f"resolving of conflict {conflict_id!r}")
