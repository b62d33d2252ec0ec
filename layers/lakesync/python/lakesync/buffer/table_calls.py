"""Calls of a DynamoDB table: reads with retries, conditional writes, and how answers are read.

Items become records, and refusals become exceptions of the port.
"""

from __future__ import annotations

import random
import time
from base64 import b64decode
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from lakesync.buffer import item_format, requests
from lakesync.buffer.caller import Refusal
from lakesync.buffer.requests import Places
from lakesync.core.clock import doubled
from lakesync.core.layout import ONE_LANE, lanes_from_text
from lakesync.core.wording import plural
from lakesync.errors import Contention, InternalError, Unavailable
from lakesync.ports import NO_HEAD, Head, HeadBusy, HeadMoved, StaleRead, StoredMark, StoredRow
from lakesync.wire.log_entries import decode_chunk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from concurrent.futures import ThreadPoolExecutor

    from lakesync.buffer.caller import DynamoCaller
    from lakesync.core.clock import Stamp
    from lakesync.ports import LogEntry, MarkKey, RowKey

# --- calls ----------------------------------------------------------------------------------------


T = TypeVar("T")

BATCH_MAX: Final = 100
"""Items of one ``BatchGetItem``."""
_PAGE_ITEMS: Final = 5_000
"""More than fit into one answer."""
THREADS_MAX: Final = 32
"""Requests that one process makes at once: the logs of all lanes take two rounds."""
_READ_TRIES_MAX: Final = 4
_READ_PAUSE_S: Final = 0.02
_PAUSE_S_MAX: Final = 0.16


class InParallel(Protocol):
    """Makes calls in parallel."""

    def __call__(self, calls: Sequence[Callable[[], T]]) -> list[T]:
        """Return the answers in the order of the calls; raises what one of them raised."""
        ...


class Threads:
    """Makes calls in threads, which are started when they are first needed, and kept.

    When the answers are returned no call is still running, even if one of them failed.
    """

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None

    def __call__(self, calls: Sequence[Callable[[], T]]) -> list[T]:
        """Return the answers in the order of the calls; raises what one of them raised."""
        if self._pool is None:
            # Few processes need it, and importing it takes a millisecond.
            from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415

            self._pool = ThreadPoolExecutor(THREADS_MAX, "dynamodb")
        running = [self._pool.submit(call) for call in calls]
        answers: list[T] = []
        errors: list[Exception] = []
        for each in running:
            try:
                answers.append(each.result())
            except Exception as error:  # noqa: BLE001 - raised below
                errors.append(error)
        if errors:
            raise errors[0]
        return answers


class TableCalls:
    """The calls of one table. Thread-safe.

    Args:
        table: the table's name.
        caller: calls DynamoDB.
        sleep_s: waits between two tries of a read.
        in_parallel: makes calls that do not depend on each other.
    """

    def __init__(
        self,
        table: str,
        caller: DynamoCaller,
        *,
        sleep_s: Callable[[float], None] = time.sleep,
        in_parallel: InParallel | None = None,
    ) -> None:
        self._table = table
        self._call = caller
        self._sleep_s = sleep_s
        self._in_parallel = in_parallel or Threads()

    def in_parallel(self, calls: Sequence[Callable[[], T]]) -> list[T]:
        """Make calls in parallel; a single call is made directly."""
        return self._in_parallel(calls) if len(calls) > 1 else [call() for call in calls]

    def _get(self, pk: str, sk: str, attribute: str = "") -> dict[str, Any]:
        answer = self._read("GetItem", requests.get(self._table, pk, sk, attribute))
        item: dict[str, Any] = answer.get("Item", {})
        return item

    def _query_all(self, pk: str, after: str = "") -> list[dict[str, Any]]:
        """Read all items of a partition behind a sort key."""
        items: list[dict[str, Any]] = []
        while True:
            body = requests.query_after(self._table, pk, after, _PAGE_ITEMS)
            answer = self._read("Query", body)
            items += answer["Items"]
            if "LastEvaluatedKey" not in answer:
                return items
            after = text(answer["LastEvaluatedKey"], "sk")

    def _batch(self, wanted: Iterable[tuple[str, str]]) -> list[dict[str, Any]]:
        rest = list(dict.fromkeys(wanted))
        read: list[dict[str, Any]] = []
        while rest:
            items, left = self._batch_once(rest[:BATCH_MAX])
            read += items
            rest = rest[BATCH_MAX:] + left
        return read

    def _batch_once(
        self, wanted: Iterable[tuple[str, str]]
    ) -> tuple[list[dict[str, Any]], list[tuple[str, str]]]:
        """Read items, at most a hundred; returns some, and the keys that are left."""
        keys = list(wanted)
        refused = 0
        while True:
            answer = self._read("BatchGetItem", requests.batch_get(self._table, keys))
            unread = answer.get("UnprocessedKeys", {}).get(self._table, {}).get("Keys", [])
            left = [(text(item, "pk"), text(item, "sk")) for item in unread]
            if len(left) < len(keys):
                return answer["Responses"].get(self._table, []), left
            refused += 1
            self._pause(refused)

    def _transaction(self, wanted: Iterable[tuple[str, str]]) -> list[dict[str, Any]]:
        keys = list(dict.fromkeys(wanted))
        read: list[dict[str, Any]] = []
        for at in range(0, len(keys), BATCH_MAX):
            body = requests.transact_get(self._table, keys[at : at + BATCH_MAX])
            answer = self._read("TransactGetItems", body)
            read += [response["Item"] for response in answer["Responses"] if "Item" in response]
        return read

    def _read(self, operation: str, body: bytes) -> dict[str, Any]:
        """Call an operation that changes nothing, with retries after transient failures."""
        for tries in range(1, _READ_TRIES_MAX):
            try:
                return self._asked(operation, body)
            except Unavailable:
                self._pause(tries)
        return self._asked(operation, body)

    def _asked(self, operation: str, body: bytes) -> dict[str, Any]:
        try:
            return self._call(operation, body)
        except Refusal as refusal:
            raise cancelled(refusal) from refusal

    def _pause(self, tries: int) -> None:
        if tries >= _READ_TRIES_MAX:
            raise Unavailable("DynamoDB is busy; the same request may succeed in a moment")
        self.pause(tries)

    def pause(self, tries: int) -> None:
        """Wait a random time, longer with each try."""
        bound_s = doubled(_READ_PAUSE_S, _PAUSE_S_MAX, tries)
        self._sleep_s(random.random() * bound_s)  # noqa: S311 - jitter

    def _conditionally(self, operation: str, body: bytes) -> bool:
        try:
            self._call(operation, body)
        except Refusal:
            return False
        return True


# --- answers --------------------------------------------------------------------------------------


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
        marks = plural(len(failed) - len(stale), "mark")
        return StaleRead(f"not as seen: {plural(len(stale), 'row')} and {marks}", stale)
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
    return {(item_format.row_pk(gateway, *key), key[1]): key for key in wanted}


def rows_of(
    items: Iterable[dict[str, Any]], places: dict[tuple[str, str], RowKey]
) -> dict[RowKey, StoredRow]:
    """Return the rows of items."""
    return {places[text(item, "pk"), text(item, "sk")]: row_of(item) for item in items}


def mark_places(gateway: str, wanted: Iterable[MarkKey]) -> dict[tuple[str, str], MarkKey]:
    """Return the item key of each wanted append mark, with the mark it belongs to."""
    return {
        (item_format.mark_pk(gateway, shard), client): (shard, client) for shard, client in wanted
    }


def marks_of(
    items: Iterable[dict[str, Any]], places: dict[tuple[str, str], MarkKey]
) -> dict[MarkKey, StoredMark]:
    """Return the append marks of items."""
    return {
        places[text(item, "pk"), text(item, "sk")]: StoredMark(
            item_format.unpack_mark(data(item, "d")), number(item, "c")
        )
        for item in items
    }


# --- stream ---------------------------------------------------------------------------------------


@dataclass(slots=True)
class Changes:
    """Commits, new configurations and revocations, by gateway."""

    commits: dict[str, Stamp] = field(default_factory=dict)
    """The last commit of each gateway that committed."""
    configs: set[str] = field(default_factory=set)
    """Gateways with a changed configuration."""
    revocations: list[tuple[str, str, str]] = field(default_factory=list)
    """Each gateway, kind and name."""


def changes_of(records: Iterable[Any]) -> Changes:
    """Read the records of a stream; those that do not concern connections are ignored."""
    changes = Changes()
    for record in records:
        change = record.get("dynamodb", {})
        key, image = change.get("Keys"), change.get("NewImage")
        if not key or not image:
            continue  # a removal is no change
        pk, sk = text(key, "pk"), text(key, "sk")
        parts = pk.split("|")
        if parts[:2] == ["", "revoked"]:
            kind, _, name = sk.partition("|")
            changes.revocations.append((parts[2], kind, name))
        elif parts[0] and parts[1:2] in (["head"], ["heads"]):
            commit = max(changes.commits.get(parts[0], 0), number(image, "l"))
            changes.commits[parts[0]] = commit
        elif parts[0] and parts[1:] == ["config"]:
            changes.configs.add(parts[0])
    return changes
