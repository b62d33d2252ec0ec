"""Pages of a source: read, checked, converted to deltas, and made durable by pushing them.

A delta's stamp is the source's own change time: its milliseconds, with the remaining microseconds
as the counter. So a page that is read twice gives the same deltas, with the same ids.

A page is checked completely before any of it is taken: the connector may be third-party code. Any
fault in a page is an error of its table, and nothing of that page is taken.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from lakesync.connectors.port import FEED, SourcePage
from lakesync.connectors.state import check_cursor
from lakesync.core.clock import DRIFT_MS_MAX, stamp
from lakesync.core.delta import CONNECTOR_CLIENTS, Delta, Op, make_delta
from lakesync.core.messages import OutcomeKind
from lakesync.errors import (
    AdapterFailed,
    AdapterQuotaExceeded,
    AdapterUnreachable,
    ClockDrift,
    Conflict,
    GatewayDeleted,
    InternalError,
    LakeSyncError,
    Retry,
    Unavailable,
    ValidationFailed,
)
from lakesync.result import Err

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from lakesync.connectors.port import Change
    from lakesync.core.messages import PushReceipt
    from lakesync.result import Result

# --- instants -------------------------------------------------------------------------------------


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_NO_OFFSET: Final = "+00:00"


def instant(text: str) -> datetime:
    """Parse a vendor's ISO 8601 text as an instant in UTC; without a zone it is in UTC.

    Raises:
        ValueError: it is not one.
    """
    moment = datetime.fromisoformat(text)
    return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)


def utc_text(moment: datetime, timespec: str = "auto") -> str:
    """Return an instant as text in UTC, with a final ``Z`` unless it has no zone."""
    text = moment.isoformat(timespec=timespec)
    if moment.tzinfo is None:
        return text
    if not text.endswith(_NO_OFFSET):
        text = moment.astimezone(UTC).isoformat(timespec=timespec)
    return f"{text.removesuffix(_NO_OFFSET)}Z"


def microseconds(moment: datetime) -> int:
    """Return an instant in microseconds since 1970, exactly; one without a zone is in UTC."""
    known = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return (known - _EPOCH) // _MICROSECOND


# --- deltas ---------------------------------------------------------------------------------------


PUSH_DELTAS_MAX: Final = 1_000
"""Deltas of one push of a connector."""
PUSH_BYTES_MAX: Final = 2_000_000
"""Values in one push of a connector, unless one delta has more: half of a client's limit."""
_US: Final = 1_000


class Refused(NamedTuple):
    """A change that cannot become a delta."""

    row_id: str
    error: LakeSyncError
    table: str
    """Of the gateway."""


def client_id_of(name: str) -> str:
    return CONNECTOR_CLIENTS + name


def delta_of(
    change: Change, table: str, client_id: str, poll_ms: int, *, is_dated: bool = False
) -> Delta:
    """Return the delta of a change.

    If the source's clock is ahead, a change may be dated after the poll's beginning: it is stamped
    with the beginning, unless the connector dates its changes itself.

    Raises:
        ValidationFailed, DeltaTooLarge: no valid delta can be made of it.
    """
    changed_us = poll_ms * _US if change.changed_us is None else change.changed_us
    milliseconds, rest = divmod(changed_us if is_dated else min(changed_us, poll_ms * _US), _US)
    hlc = stamp(milliseconds, rest) if change.hlc is None else change.hlc
    op = Op.DELETE if change.columns is None else Op.INSERT
    return make_delta(op, table, change.row_id, change.columns, client_id=client_id, hlc=hlc)


def deltas_of(
    page: SourcePage, source: str, tables: Mapping[str, str], client_id: str, poll_ms: int
) -> tuple[list[Delta], list[Refused]]:
    """Return the deltas of a page, and the rows that cannot become one.

    Args:
        source: the name of what was read: a table of the source, or its feed.
        tables: the source's tables, each with its name in the gateway.
    """
    deltas: list[Delta] = []
    refused = [
        Refused(row_id, ValidationFailed(reason), tables[table or source])
        for row_id, reason, table in page.unreadable
    ]
    for change in page.changes:
        table = tables[change.table or source]
        try:
            delta = delta_of(change, table, client_id, poll_ms, is_dated=page.is_dated)
        except LakeSyncError as error:
            refused.append(Refused(str(change.row_id), error, table))
        else:
            deltas.append(delta)
    return deltas, refused


def pushes_of(deltas: Sequence[Delta], pages: int = 1) -> Iterator[tuple[Delta, ...]]:
    """Cut deltas into pushes, each as large as so many usual ones."""
    deltas_max, bytes_max = PUSH_DELTAS_MAX * pages, PUSH_BYTES_MAX * pages
    part: list[Delta] = []
    size = 0
    for delta in deltas:
        delta_bytes = sum(map(len, chain.from_iterable(delta.columns)))
        if part and (len(part) == deltas_max or size + delta_bytes > bytes_max):
            yield tuple(part)
            part, size = [], 0
        part.append(delta)
        size += delta_bytes
    if part:
        yield tuple(part)


def identifier(name: str) -> str:
    """Return a name of another system in a form that is valid for a table or column."""
    plain = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_")[:64]
    return plain if plain and not plain[0].isdigit() else f"_{plain}"[:64]


# --- reading --------------------------------------------------------------------------------------


ReadsPages: TypeAlias = "Callable[..., Result[SourcePage, LakeSyncError]]"
"""`lakesync.connectors.port.Connector.read`, or what reads a stretch with its arguments."""


class Read(NamedTuple):
    """A page, as it is taken."""

    deltas: list[Delta]
    refused: list[Refused]
    cursor: str
    has_more: bool
    report: dict[str, str | int]


def read_page(
    read: ReadsPages,
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
        source: a table of the source, or its feed.
        tables: the source's tables, each with its name in the gateway.
        rows_max: how many rows are requested.
        dated: gives rows that came back their stamps.

    Raises:
        LakeSyncError: the connector's error, or a fault in its answer.
    """
    try:
        answer = read(source, cursor, rows_max=rows_max, poll_ms=poll_ms)
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


# --- refusals -------------------------------------------------------------------------------------


AHEAD_MS_MAX: Final = 86_400_000
"""How far ahead of our clock a change may be that waits for it: what is dated later is the source's
own fault, and a dead letter."""

_ALL: Final = (Unavailable, AdapterUnreachable, AdapterQuotaExceeded, GatewayDeleted, Conflict)
"""What is wrong with more than one table."""


def stops_all(source: str, error: LakeSyncError) -> bool:
    """Return whether an error is of more than one table: a feed brings the changes of all."""
    is_feeds = source == FEED and error.retry is Retry.LATER
    return is_feeds or isinstance(error, _ALL)


def refused_in(
    receipt: PushReceipt, deltas: Sequence[Delta], now_ms: int
) -> dict[int, LakeSyncError]:
    """Return what was refused for good, by its place.

    Raises:
        LakeSyncError: something was refused that is taken later as it is. So is a stamp that is
            ahead of our clock: no connector dates behind its poll, so the clock stepped back.
    """
    refused = {}
    for outcome in receipt.outcomes:
        if outcome.kind is not OutcomeKind.REFUSED or outcome.error is None:
            continue
        if outcome.error.retry is Retry.LATER:
            raise outcome.error
        ahead_ms = (deltas[outcome.index].hlc >> 16) - now_ms
        if isinstance(outcome.error, ClockDrift) and ahead_ms <= AHEAD_MS_MAX:
            raise Unavailable(
                f"the clock stepped back by {ahead_ms} ms or more: waiting until it has caught up",
                retry_after_s=max(-(-(ahead_ms - DRIFT_MS_MAX) // 1000), 1),
            ) from outcome.error
        refused[outcome.index] = outcome.error
    return refused
