"""Pulls from a source: a declared destination that is read in place of the gateway.

A page that was applied is not read again: after an error the next pull continues behind it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lakesync.client.storage.source_rows import SourceRows
from lakesync.client.summaries import PullSummary
from lakesync.core.destinations import NAME
from lakesync.core.messages import Pull
from lakesync.errors import (
    CursorExpired,
    InternalError,
    LakeSyncError,
    NotTheGateway,
    ValidationFailed,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakesync.client.storage.file import ClientFile
    from lakesync.core.messages import PullPage
    from lakesync.ports import Transport


def checked_source(value: Any) -> str:
    """Return a source's name, or raise `ValidationFailed`."""
    if not isinstance(value, str) or NAME.fullmatch(value) is None:
        raise ValidationFailed(
            "source is the name of a declared destination: a lower-case letter, then letters, "
            f"digits and hyphens, not {value!r:.80}",
            field="source",
        )
    return value


def pull_source(
    file: ClientFile,
    transport: Transport,
    source: str,
    deltas_max: int,
    stopped: Callable[[], bool],
) -> PullSummary:
    """Pull a source to its end, or until stopped; the ``done`` of an error says what was pulled."""
    rows, done = SourceRows(file, source), PullSummary()
    asked = Pull(file.client_id, deltas_max=deltas_max, removes=True, source=source)
    try:
        while not stopped():
            with file.database.lock:
                at = rows.position()
            page, is_anew = _fetch(transport, asked, at)
            with file.database.transaction():
                if rows.position() != at:
                    continue  # another process that shares the file has advanced further
                rows.take(page, is_anew=is_anew)
            done += PullSummary(1, page.count, is_anew or page.resync is not None)
            if not page.has_more:
                break
    except LakeSyncError as error:
        error.done = done
        raise
    return done


def _fetch(transport: Transport, asked: Pull, at: str) -> tuple[PullPage, bool]:
    """Fetch the page behind a place; also tell whether the source is another one than before."""
    try:
        return _checked(transport.pull(replace(asked, snapshot=at)), at), False
    except CursorExpired:
        if not at:
            raise
    return _checked(transport.pull(asked), ""), True


def _checked(page: PullPage, at: str) -> PullPage:
    if not page.snapshot:
        raise NotTheGateway("the answer is no page of a source; nothing was applied")
    if page.has_more and page.snapshot == at:
        raise InternalError(
            "the gateway answered with the place that it was asked from; nothing was applied: "
            "report it with the time of the request"
        )
    return page
