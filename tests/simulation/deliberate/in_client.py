"""Faults in the client: its cursor, its outbox, its clock, its patience."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lakesync.client import client, download, gateway_http, resync, upload
from lakesync.client.download import Pages
from lakesync.client.loop import SyncLoop
from lakesync.client.resync import Resyncer
from lakesync.client.storage import app_table, editor, edits, outbox
from lakesync.client.storage.app_table import AppObjects, AppTable
from lakesync.client.storage.file import Position
from lakesync.client.storage.outbox import DeviceClock, Outbox
from lakesync.client.storage.stored_rows import NOT_STORED, Rows
from lakesync.client.sync import Syncer
from lakesync.client.upload import Pusher, PushSummary, Receipts, Stopped
from lakesync.core.delta import checked_delta
from lakesync.core.merge import fold
from tests.simulation.deliberate.registry import Replaced, deliberate
from tests.simulation.themes import (
    FINAL_UNRULED,
    FIREWALL,
    FUNCTIONS,
    HOTEL,
    HOTEL_ROW,
    LATE,
    LIMITS_AND_CLOCKS,
    REFUSED_LATE,
    RESTARTS,
    RETURNING,
    SET_UP_ANEW,
    SKEWED,
    TRIGGERS,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from lakesync.client.storage.file import ClientFile
    from lakesync.client.storage.outbox import Batch, Entry
    from lakesync.client.upload import BatchResult
    from lakesync.core.delta import Delta, Op
    from lakesync.core.messages import Pull, PullPage, PushReceipt
    from lakesync.errors import LakeSyncError


@deliberate("a push moves the client's cursor")
def cursor_moves_on_push() -> list[Replaced]:
    real = Receipts.apply

    def apply(self: Receipts, batch: Batch, receipt: PushReceipt) -> BatchResult:
        self.file.connection.execute(
            "UPDATE _lakesync_sync SET cursor = max(cursor, ?)", (receipt.server_hlc,)
        )
        return real(self, batch, receipt)

    return [(Receipts, "apply", apply)]


@deliberate("the client takes every page for the last one")
def has_more_is_ignored() -> list[Replaced]:
    real = Syncer._fetch

    def fetch(self: Syncer, at: Position, quarantined: int) -> tuple[PullPage, bool]:
        page, rebuilt = real(self, at, quarantined)
        return replace(page, has_more=False), rebuilt

    return [(Syncer, "_fetch", fetch)]


@deliberate("the cursor is on the disk before its page")
def cursor_before_page() -> list[Replaced]:
    real = Pages.apply

    def apply(self: Pages, page: PullPage, arrived: Any) -> Any:
        connection = self.file.connection
        connection.execute(
            "UPDATE _lakesync_sync SET cursor = ?, epoch = ?", (page.cursor, page.epoch)
        )
        connection.execute("COMMIT")
        connection.execute("BEGIN IMMEDIATE")
        return real(self, page, arrived)

    return [(Pages, "apply", apply)]


@deliberate("what the gateway says replaces the edits that wait")
def pages_replace_edits() -> list[Replaced]:
    def merged(table: Any, by_row: Any, stored: Any, echoed: Any, compare: Any) -> Iterator[Any]:
        del echoed, compare
        for row_id, deltas in by_row.items():
            row = stored.get(row_id, NOT_STORED)
            yield table, row_id, fold(deltas, row.known), row.base, row.waiting

    return [(download, "_merged", merged)]


@deliberate("edits leave the outbox when they are sent")
def outbox_cleared_before_answer() -> list[Replaced]:
    def mark_sent(self: Outbox, entries: Iterable[Entry]) -> None:
        self.remove([entry.hlc for entry in entries])

    return [(Outbox, "mark_sent", mark_sent)]


@deliberate("refused edits are thrown away")
def refused_edits_are_dropped() -> list[Replaced]:
    def quarantine(self: Outbox, refused: Iterable[tuple[Entry, LakeSyncError]]) -> None:
        self.remove([entry.hlc for entry, _ in refused])

    return [(Outbox, "quarantine", quarantine)]


@deliberate("the edits of one transaction are pushed one by one")
def transactions_are_split() -> list[Replaced]:
    return [(outbox, "_units", lambda entries: ([entry] for entry in entries))]


@deliberate("a push that is refused as a whole is never cut", FIREWALL)
def whole_refusals_block() -> list[Replaced]:
    def cut(self: Pusher, batch: Batch, error: LakeSyncError, pace: object) -> PushSummary:
        del batch, pace
        raise error

    return [(Pusher, "_cut", cut)]


@deliberate("every edit of a push that is refused as a whole is thrown away", FIREWALL)
def whole_refusals_are_dropped() -> list[Replaced]:
    def cut(self: Pusher, batch: Batch, error: LakeSyncError, pace: object) -> PushSummary:
        del error, pace
        with self._file.database.transaction():
            self._file.outbox.remove(entry.hlc for entry in batch.entries)
        return PushSummary()

    return [(Pusher, "_cut", cut)]


@deliberate("the status of an answer tells what it means, whoever gave it", HOTEL)
def anybody_refuses() -> list[Replaced]:
    def foreign(status: int, headers: Mapping[str, str], body: bytes) -> LakeSyncError:
        del headers
        kind = gateway_http._BY_STATUS.get(status) or gateway_http._of_class(status)
        return kind(body.decode(errors="replace"))

    return [(gateway_http, "foreign", foreign)]


@deliberate("what does not get through to the gateway counts as arrived", HOTEL)
def anybody_accepts() -> list[Replaced]:
    def passed_by(self: Pusher, batch: Batch, error: LakeSyncError, pace: object) -> PushSummary:
        del error, pace
        with self._file.database.transaction():
            self._file.outbox.remove(entry.hlc for entry in batch.entries)
        return PushSummary()

    return [(Pusher, "_pass_by", passed_by)]


LONG_STAY = HOTEL | {"bursts": 10, "span_ms": 600_000, "poll_s": 20.0}


@deliberate("what somebody on the way refused counts as not sent", LONG_STAY)
def anybody_settles_doubts() -> list[Replaced]:
    real = Pusher._pass_by

    def passed_by(self: Pusher, batch: Batch, error: LakeSyncError, pace: Any) -> PushSummary:
        done = real(self, batch, error, pace)
        self._file.connection.execute(
            "UPDATE _lakesync_outbox SET status = 'pending' WHERE status = 'sent'"
        )
        return done

    return [(Pusher, "_pass_by", passed_by)]


@deliberate("what was stopped once on its way is never tried again", HOTEL)
def stopped_edits_stay() -> list[Replaced]:
    return [(Stopped, "is_due", lambda _: False)]


@deliberate("an event whose push went unanswered is stamped again", REFUSED_LATE)
def doubtful_events_are_stamped_again() -> list[Replaced]:
    return [
        (upload, "_future_but_maybe_in_flight", lambda *_: False),
        (upload, "_late_but_maybe_stored", lambda *_: False),
        (outbox, "IN_DOUBT", frozenset()),
    ]


@deliberate("what was pulled and is not there is taken for lost on its way", LATE)
def unseen_is_pending() -> list[Replaced]:
    def settle_doubts(self: Outbox, until: int) -> None:
        self._connection.execute(
            "UPDATE _lakesync_outbox SET status = 'pending' WHERE status = 'sent' AND hlc <= ?",
            (until,),
        )

    return [(Outbox, "settle_doubts", settle_doubts)]


@deliberate("new events are pushed before a restored buffer was read", RETURNING)
def pushes_do_not_wait_for_rebuilds() -> list[Replaced]:
    return [(Resyncer, "delays_pushes", property(lambda _: False))]


@deliberate("edits that are stamped again change their order")
def stamped_again_in_another_order() -> list[Replaced]:
    real = Outbox.take_from

    def take_from(self: Outbox, *given: Any) -> Any:
        return real(self, *given)[::-1]

    return [(Outbox, "take_from", take_from)]


@deliberate("what somebody on the way stopped is stamped again with a late event", HOTEL_ROW)
def stopped_edits_are_stamped_again() -> list[Replaced]:
    real = Outbox.take_from

    def take_from(self: Outbox, start: int, events: Collection[int] = ()) -> Any:
        stopped = "code IS NOT NULL AND status <> 'quarantined'"
        self._connection.execute(f"UPDATE _lakesync_outbox SET code = NULL WHERE {stopped}")  # noqa: S608 - constant
        return real(self, start, events)

    return [(Outbox, "take_from", take_from)]


@deliberate("an edit over today's limits cannot be stamped again", LIMITS_AND_CLOCKS)
def limits_keep_edits_from_new_stamps() -> list[Replaced]:
    return [(upload, "known_delta", checked_delta)]


@deliberate("a discarded or re-stamped edit stays in its row")
def rows_keep_what_was_taken_back() -> list[Replaced]:
    return [(Rows, "refold", lambda *_: None)]


@deliberate("the client's clock does not follow what it pulls", SKEWED)
def clock_does_not_follow() -> list[Replaced]:
    return [(DeviceClock, "follow", lambda *_: None)]


@deliberate("the client's clock begins anew with each start", RESTARTS)
def clock_is_forgotten() -> list[Replaced]:
    real = DeviceClock.reload

    def reload(self: DeviceClock) -> None:
        real(self)
        self._clock.last = 0

    return [(DeviceClock, "reload", reload)]


@deliberate("a failed sync is tried again at once")
def retries_do_not_wait() -> list[Replaced]:
    return [(SyncLoop, "backoff_s", lambda *_: 0.0)]


@deliberate("a plain edit joins a transaction that is open on its thread")
def plain_edits_join_transactions() -> list[Replaced]:
    real = editor.record

    def record(
        file: ClientFile, op: Op, table: str, row_id: str, columns: Mapping[str, object]
    ) -> Delta:
        if not file.connection.in_transaction:
            return real(file, op, table, row_id, columns)
        return edits.Writer(file, is_group=False).write(op, table, row_id, columns)

    return [(client, "record", record)]


@deliberate("a table is called in a client's file as on the wire, whatever SQLite has", FUNCTIONS)
def functions_are_hidden() -> list[Replaced]:
    return [(AppObjects, "free_name", lambda _, name, **__: name)]


@deliberate("a client lets a late update bring a deleted row back", FINAL_UNRULED)
def deletes_do_not_win_in_the_file() -> list[Replaced]:
    return [(AppTable, "as_read", lambda _, state: state)]


@deliberate("a client that learns that deletes win leaves its rows as they are", FINAL_UNRULED)
def rows_are_not_read_anew() -> list[Replaced]:
    return [(Rows, "read_anew", lambda *_: None)]


@deliberate("a file that is given to another gateway loses the edits that wait", SET_UP_ANEW)
def no_edit_moves() -> list[Replaced]:
    def rebind(file: ClientFile, keep: str) -> int:
        del keep
        return resync.rebind(file, "nothing")

    return [(client, "rebind", rebind)]


@deliberate("a client does not name the gateway that it belongs to", SET_UP_ANEW)
def no_gateway_is_named() -> list[Replaced]:
    leave, pull = Pusher._leave, Position.pull

    def nameless_push(self: Pusher, pace: Any) -> Batch | None:
        batch = leave(self, pace)
        return batch and replace(batch, epoch=None)

    def nameless_pull(self: Position, *arguments: Any) -> Pull:
        return replace(pull(self, *arguments), epoch="")

    return [(Pusher, "_leave", nameless_push), (Position, "pull", nameless_pull)]


@deliberate("a trigger of the app may write to another synced table", TRIGGERS)
def triggers_write_synced_tables() -> list[Replaced]:
    return [(app_table, "_barred", lambda *_: {})]
