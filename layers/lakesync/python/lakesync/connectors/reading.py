"""Reads one page of a connector, checks it completely, and converts it to deltas.

The connector may be third-party code. Any fault in a page is an error of its table, and nothing of
that page is taken.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from lakesync.connectors.deltas import deltas_of
from lakesync.connectors.port import SourcePage
from lakesync.connectors.state import check_cursor
from lakesync.errors import AdapterFailed, Conflict, InternalError, LakeSyncError
from lakesync.result import Err

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lakesync.connectors.deltas import Refused
    from lakesync.core.delta import Delta
    from lakesync.result import Result


class ReadsPages(Protocol):
    """What pages are asked of: a connector, or what reads a stretch of one."""

    def read(
        self, table: str, cursor: str, *, rows_max: int, poll_ms: int
    ) -> Result[SourcePage, LakeSyncError]:
        """As `lakesync.connectors.port.Connector.read`."""
        ...


class Read(NamedTuple):
    """A page, as it is taken."""

    deltas: list[Delta]
    refused: list[Refused]
    cursor: str
    has_more: bool
    report: dict[str, str | int]


def read_page(
    connector: ReadsPages,
    source: str,
    cursor: str,
    tables: Mapping[str, str],
    client_id: str,
    rows_max: int,
    poll_ms: int,
    dated: Callable[[SourcePage], SourcePage] = lambda page: page,
) -> Read:
    """Read the page behind a cursor.

    Args:
        connector: the source.
        source: a table of the source, or its feed.
        cursor: the previous page's.
        tables: the source's tables, each with its name in the gateway.
        client_id: the writer.
        rows_max: how many rows are requested.
        poll_ms: when the poll began.
        dated: gives rows that came back their stamps.

    Raises:
        LakeSyncError: the connector's error, or a fault in its answer.
    """
    try:
        answer = connector.read(source, cursor, rows_max=rows_max, poll_ms=poll_ms)
    except Exception as exc:
        raise _failed(exc) from exc
    if isinstance(answer, Err):
        if isinstance(answer.error, Conflict):  # the source's; ours: another process polls
            raise AdapterFailed(answer.error.message)
        raise answer.error
    try:
        return _checked(answer.value, source, cursor, tables, client_id, poll_ms, dated)
    except LakeSyncError:
        raise
    except Exception as exc:
        raise _failed(exc) from exc


def _checked(
    page: SourcePage,
    source: str,
    cursor: str,
    tables: Mapping[str, str],
    client_id: str,
    poll_ms: int,
    dated: Callable[[SourcePage], SourcePage],
) -> Read:
    if not isinstance(page, SourcePage):
        raise InternalError(f"the connector gave no page, but {type(page).__name__}")
    following = check_cursor(page.cursor)
    if page.has_more and following == cursor:
        raise AdapterFailed(f"the source gave the same page of {source} again; it never ends")
    named = {each.table for each in page.changes} | {each.table for each in page.unreadable}
    unknown = named - {"", *tables}
    if unknown:
        raise InternalError(f"the connector gave rows of {unknown}, which was not requested")
    deltas, refused = deltas_of(dated(page), source, tables, client_id, poll_ms)
    return Read(deltas, refused, following, page.has_more, dict(page.report))


def _failed(error: Exception) -> InternalError:
    return InternalError(f"the connector failed: {type(error).__name__}: {error}")
