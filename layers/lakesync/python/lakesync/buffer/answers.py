"""Reads DynamoDB's answers: items become records, refusals become exceptions of the port."""

from __future__ import annotations

from base64 import b64decode
from typing import TYPE_CHECKING, Any, Final

from lakesync.buffer import keys, pack
from lakesync.buffer.transaction import Places
from lakesync.core.layout import ONE_LANE, lanes_from_text
from lakesync.errors import Contention, InternalError
from lakesync.ports import (
    NO_HEAD,
    Head,
    HeadBusy,
    HeadMoved,
    StaleRead,
    StoredMark,
    StoredRow,
)
from lakesync.wire.log_chunk import decode_chunk

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lakesync.buffer.caller import Refusal
    from lakesync.ports import LogEntry, MarkKey, RowKey

_CONFLICT: Final = "TransactionConflict"
_RACES: Final = frozenset({_CONFLICT, "ThrottlingError", "ProvisionedThroughputExceeded"})
NOTHING: Final = Places({}, {})


def cancelled(refusal: Refusal, places: Places = NOTHING) -> Exception:
    """Return the exception for a refused request: a failed condition, a race, or a bug of ours.

    Args:
        refusal: DynamoDB's answer.
        places: which items of the transaction are heads, and which are rows.
    """
    reasons = [reason.get("Code", "None") for reason in _reasons(refusal)]
    failed = [place for place, code in enumerate(reasons) if code == "ConditionalCheckFailed"]
    moved = {
        lane: head_of(item) if (item := _item(refusal, place)) else NO_HEAD
        for place, lane in places.heads.items()
        if place in failed
    }
    if moved:
        return HeadMoved(moved)
    if failed:
        stale = {
            key: row_of(item) if (item := _item(refusal, place)) else None
            for place, key in places.rows.items()
            if place in failed
        }
        return StaleRead(f"{len(failed)} rows or marks are not as they were seen", stale)
    if any(place < len(reasons) and reasons[place] == _CONFLICT for place in places.heads):
        return HeadBusy("another transaction writes to a head")
    codes = sorted(set(reasons) - {"None"})
    if refusal.kind == "TransactionCanceledException" and not _RACES.issuperset(codes):
        return InternalError(f"DynamoDB refused a transaction: {', '.join(codes)}")
    return Contention(f"another write was in progress ({', '.join(codes)}); try again in a moment")


def _item(refusal: Refusal, place: int) -> dict[str, Any]:
    """Return the present state of the item that failed a condition; empty if there is none."""
    item: dict[str, Any] = _reasons(refusal)[place].get("Item", {})
    return item


def _reasons(refusal: Refusal) -> list[dict[str, Any]]:
    reasons: list[dict[str, Any]] = refusal.body.get("CancellationReasons", [])
    return reasons


def reason(refusal: Refusal, place: int) -> str:
    """Return why one item of a transaction was refused; the text ``None`` if it was not."""
    reasons = _reasons(refusal)
    return reasons[place].get("Code", "None") if place < len(reasons) else "None"


def head_of(item: dict[str, Any]) -> Head:
    """Return the head of an item."""
    return Head(
        commit=number(item, "c"),
        config_version=number(item, "v"),
        epoch=text(item, "e") if "e" in item else "",
        logged_bytes=number(item, "lb"),
        flushed_bytes=number(item, "fb"),
        oldest_unflushed=number(item, "o"),
        last_logged=number(item, "l"),
        recent=decode_chunk(data(item, "i")) if "i" in item else (),
        is_closed="x" in item,
        trimmed=number(item, "t"),
        lanes=lanes_from_text(text(item, "ln")) if "ln" in item else ONE_LANE,
    )


def entries_of(item: dict[str, Any]) -> tuple[LogEntry, ...]:
    """Return the log entries of an item."""
    return decode_chunk(data(item, "d"))


def row_of(item: dict[str, Any]) -> StoredRow:
    """Return the row of an item."""
    return StoredRow(data(item, "d"), number(item, "c"))


def text(item: dict[str, Any], name: str) -> str:
    """Return a text attribute."""
    value: str = item[name]["S"]
    return value


def number(item: dict[str, Any], name: str) -> int:
    """Return a number attribute; 0 if there is none."""
    return int(item[name]["N"]) if name in item else 0


def data(item: dict[str, Any], name: str) -> bytes:
    """Return a binary attribute."""
    return b64decode(item[name]["B"])


def row_places(gateway: str, wanted: Iterable[RowKey]) -> dict[tuple[str, str], RowKey]:
    """Return the item key of each wanted row, with the row it belongs to."""
    return {(keys.row_pk(gateway, *key), key[1]): key for key in wanted}


def rows_of(
    items: Iterable[dict[str, Any]], places: dict[tuple[str, str], RowKey]
) -> dict[RowKey, StoredRow]:
    """Return the rows of items."""
    return {places[text(item, "pk"), text(item, "sk")]: row_of(item) for item in items}


def mark_places(gateway: str, wanted: Iterable[MarkKey]) -> dict[tuple[str, str], MarkKey]:
    """Return the item key of each wanted append mark, with the mark it belongs to."""
    return {(keys.mark_pk(gateway, shard), client): (shard, client) for shard, client in wanted}


def marks_of(
    items: Iterable[dict[str, Any]], places: dict[tuple[str, str], MarkKey]
) -> dict[MarkKey, StoredMark]:
    """Return the append marks of items."""
    return {
        places[text(item, "pk"), text(item, "sk")]: StoredMark(
            pack.unpack_mark(data(item, "d")), number(item, "c")
        )
        for item in items
    }
