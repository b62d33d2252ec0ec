"""Converts pages of a source to deltas. Pure.

The stamp is the source's own change time: its milliseconds, with the remaining microseconds as the
counter. So a page that is read twice gives the same deltas, with the same ids.
"""

from __future__ import annotations

import re
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple

from lakesync.core.client_ids import CONNECTOR_CLIENTS
from lakesync.core.clock import stamp
from lakesync.core.delta import Delta, Op, make_delta
from lakesync.errors import LakeSyncError, ValidationFailed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from lakesync.connectors.port import Change, SourcePage

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
    """Return the client id under which a connector writes."""
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
        page: the page.
        source: the name of what was read: a table of the source, or its feed.
        tables: the source's tables, each with its name in the gateway.
        client_id: the writer.
        poll_ms: when the poll began.
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
