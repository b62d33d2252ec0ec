"""Notes what pulls reveal about their clients, for administrators."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakesync.core.messages import QUARANTINED_MAX
from lakesync.errors import LakeSyncError
from lakesync.runtime import observe

if TYPE_CHECKING:
    from lakesync.core.messages import Pull
    from lakesync.gateway.access import Access


def noted(access: Access, gateway: str, pull: Pull) -> None:
    """Note how far a client has read and what it has in quarantine; its answer never waits on it.

    A follower's cursor is moved by receipts too, and is stored elsewhere; a source has none.
    """
    if not pull.own_cursor or pull.source:
        return
    quarantined = None if pull.quarantined is None else min(pull.quarantined, QUARANTINED_MAX)
    cursor = 0 if pull.snapshot else pull.since
    try:
        access.note(gateway, pull.client_id, cursor, quarantined)
    except LakeSyncError as error:
        observe.failure(error, route="noting")
