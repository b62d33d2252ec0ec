"""Giving a file to another gateway, on purpose.

The file forgets which gateway it belongs to, and takes the next one that answers. Its rows become
stale, as for a re-sync: they stay readable, the new gateway's pages replace them, and those that no
page brings are removed in the end. Law K36: ``docs/spec/client.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, TypeAlias, cast, get_args

from lakesync.client.actions.entries import ActionStatus
from lakesync.client.recovery.journal import Journal
from lakesync.client.recovery.resync import Resyncer
from lakesync.client.storage.source_rows import forget_all
from lakesync.client.upload.entries import Status
from lakesync.core.attachments import references_in
from lakesync.core.values import parse
from lakesync.errors import AnotherGateway, ValidationFailed
from lakesync.wire.records import decode_records

if TYPE_CHECKING:
    from lakesync.client.storage.file import ClientFile
    from lakesync.core.attachments import Attachment

KeepEdits: TypeAlias = Literal["edits", "nothing"]
_NOT_SENT: Final = (
    "the file was given to another gateway before the action was sent: retry it there, or discard "
    "it"
)
_MAYBE_DONE: Final = (
    "the file was given to another gateway before the outcome was known: look whether it was done "
    "there before you retry it here, or discard it"
)
_THERE_ONCE: Final = (Status.HELD_BACK, Status.OFFERED)
_OUTBOX: Final = "SELECT hlc, table_id, row_id, run FROM _lakesync_outbox"
_WAIT: Final = (
    "UPDATE _lakesync_outbox SET status = 'pending' WHERE status NOT IN ('pending', 'quarantined')"
)


def edits_to_move(file: ClientFile) -> int:
    """Return how many edits `rebind` would keep or give up."""
    (number,) = file.connection.execute(
        "SELECT count(*) FROM _lakesync_outbox WHERE status NOT IN (?, ?)", _THERE_ONCE
    ).fetchone()
    return int(number)


def checked_keep(keep: str) -> KeepEdits:
    """Return what becomes of the edits.

    Raises:
        ValidationFailed: it is none of both words.
    """
    if keep not in get_args(KeepEdits):
        raise ValidationFailed('keep must be "edits" or "nothing"', field="keep")
    return cast("KeepEdits", keep)


def rebind(file: ClientFile, keep: KeepEdits) -> int:
    """Give a file to the next gateway that answers; returns how many edits it kept or gave up.

    Within the caller's transaction, and while nothing is pushed or pulled.

    Raises:
        ValidationFailed: ``keep`` is none of both.
    """
    number = edits_to_move(file)
    going = _THERE_ONCE if checked_keep(keep) == "edits" else tuple(Status)
    marks = ", ".join("?" * len(going))
    left = file.connection.execute(f"{_OUTBOX} WHERE status IN ({marks})", going).fetchall()
    file.outbox.remove(hlc for hlc, *_ in left)
    file.rows.refold({(table_id, row_id): None for _, table_id, row_id, _ in left})
    file.connection.execute(_WAIT)
    Resyncer(file).start_elsewhere()
    file.conflicts.clear()
    forget_all(file)
    Journal(file).clear()
    for action in file.actions.listed(dead=False):
        was_sent = action.status is ActionStatus.SENT
        file.actions.end(action, AnotherGateway(_MAYBE_DONE if was_sent else _NOT_SENT))
    file.attachments.start_elsewhere(_references(file), keep_waiting=keep == "edits")
    return number


def _references(file: ClientFile) -> frozenset[Attachment]:
    """Return the attachments that edits in the outbox refer to."""
    return frozenset(
        reference
        for _, _, _, run in file.connection.execute(_OUTBOX)
        for delta in decode_records(run)
        for _, value in delta.columns
        for reference in references_in(parse(value))
    )
