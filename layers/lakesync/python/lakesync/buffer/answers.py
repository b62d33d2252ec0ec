"""DynamoDB's answers, read: items become records, refusals become exceptions of the port."""

from __future__ import annotations

from base64 import b64decode
from typing import TYPE_CHECKING, Any, Final

from lakesync.buffer import keys, pack
from lakesync.errors import Contention, InternalError
from lakesync.ports import NO_HEAD, Head, HeadMoved, LogEntry, StaleRead, StoredMark, StoredRow

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from lakesync.buffer.caller import Refusal
    from lakesync.ports import MarkKey, RowKey

_RACES: Final = frozenset(
    {"TransactionConflict", "ThrottlingError", "ProvisionedThroughputExceeded"}
)


def cancelled(refusal: Refusal, heads: Mapping[int, str]) -> Exception:
    """Give the exception for a refused request: something moved, a race, or a bug of ours."""
    reasons = [reason.get("Code", "None") for reason in _reasons(refusal)]
    failed = [place for place, code in enumerate(reasons) if code == "ConditionalCheckFailed"]
    moved = {
        heads[place]: head_of(item) if (item := _reasons(refusal)[place].get("Item")) else NO_HEAD
        for place in failed
        if place in heads
    }
    if moved:
        return HeadMoved(moved)
    if failed:
        return StaleRead(f"{len(failed)} rows or marks are not as they were seen")
    codes = sorted(set(reasons) - {"None"})
    if refusal.kind == "TransactionCanceledException" and not _RACES.issuperset(codes):
        return InternalError(f"DynamoDB refused a transaction: {', '.join(codes)}")
    return Contention(f"another write was in progress ({', '.join(codes)}); try again in a moment")


def _reasons(refusal: Refusal) -> list[dict[str, Any]]:
    reasons: list[dict[str, Any]] = refusal.body.get("CancellationReasons", [])
    return reasons


def reason(refusal: Refusal, place: int) -> str:
    """Give why one item of a transaction was refused; ``None``, as text, if it was not."""
    reasons = _reasons(refusal)
    return reasons[place].get("Code", "None") if place < len(reasons) else "None"


def head_of(item: dict[str, Any]) -> Head:
    """Give the head of an item."""
    return Head(
        commit=number(item, "c"),
        config_version=number(item, "v"),
        epoch=text(item, "e") if "e" in item else "",
        trimmed=number(item, "t"),
        logged_bytes=number(item, "lb"),
        flushed_bytes=number(item, "fb"),
        oldest_unflushed=number(item, "o"),
        last_logged=number(item, "l"),
    )


def entry_of(item: dict[str, Any]) -> LogEntry:
    """Give the log entry of an item."""
    return LogEntry(
        stamp=int(text(item, "sk"), 16),
        records=pack.inflate(data(item, "d")),
        count=number(item, "n"),
        tables=frozenset(text(item, "tb").split(",")),
        logged_bytes=number(item, "lb"),
        previous=number(item, "p"),
        rule_rows=pack.inflate(data(item, "r")) if "r" in item else b"",
    )


def text(item: dict[str, Any], name: str) -> str:
    """Give a text attribute."""
    value: str = item[name]["S"]
    return value


def number(item: dict[str, Any], name: str) -> int:
    """Give a number attribute; 0 if there is none."""
    return int(item[name]["N"]) if name in item else 0


def data(item: dict[str, Any], name: str) -> bytes:
    """Give a binary attribute."""
    return b64decode(item[name]["B"])


def row_places(gateway: str, wanted: Iterable[RowKey]) -> dict[tuple[str, str], RowKey]:
    """Give the item key of each wanted row, with the row it belongs to."""
    return {(keys.row_pk(gateway, *key), key[1]): key for key in wanted}


def rows_of(
    items: Iterable[dict[str, Any]], places: dict[tuple[str, str], RowKey]
) -> dict[RowKey, StoredRow]:
    """Give the rows of items."""
    return {
        places[text(item, "pk"), text(item, "sk")]: StoredRow(data(item, "d"), number(item, "c"))
        for item in items
    }


def mark_places(gateway: str, wanted: Iterable[MarkKey]) -> dict[tuple[str, str], MarkKey]:
    """Give the item key of each wanted append mark, with the mark it belongs to."""
    return {(keys.mark_pk(gateway, shard), client): (shard, client) for shard, client in wanted}


def marks_of(
    items: Iterable[dict[str, Any]], places: dict[tuple[str, str], MarkKey]
) -> dict[MarkKey, StoredMark]:
    """Give the append marks of items."""
    return {
        places[text(item, "pk"), text(item, "sk")]: StoredMark(
            pack.unpack_mark(data(item, "d")), number(item, "c")
        )
        for item in items
    }
