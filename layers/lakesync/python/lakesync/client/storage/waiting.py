"""What of a client's file nobody else has: edits, actions and attachments that wait."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakesync.client.storage.reading import Answer

_KINDS: Final = (
    ("edit", "waits for the gateway", "wait for the gateway"),
    ("edit", "was refused", "were refused"),
    ("action", "waits", "wait"),
    ("action", "is a dead letter", "are dead letters"),
    ("attachment", "is not uploaded", "are not uploaded"),
)
_COUNTS: Final = (
    "SELECT (SELECT count(*) FROM _lakesync_outbox WHERE status <> 'quarantined'), "
    "(SELECT count(*) FROM _lakesync_outbox WHERE status = 'quarantined'), "
    "(SELECT count(*) FROM _lakesync_actions WHERE status NOT IN ('dead', 'done')), "
    "(SELECT count(*) FROM _lakesync_actions WHERE status = 'dead'), "
    "(SELECT count(*) FROM _lakesync_attachments WHERE status <> 'kept')"
)


def what_waits(read: Callable[[str], Answer]) -> str:
    """Return how much waits, for people; empty if nothing does."""
    _, ((*counts,),) = read(_COUNTS)
    waiting = zip(counts, _KINDS, strict=True)
    return ", ".join(_counted(int(str(count)), *kind) for count, kind in waiting if count)


def _counted(number: int, noun: str, one: str, many: str) -> str:
    return f"1 {noun} {one}" if number == 1 else f"{number} {noun}s {many}"
