"""Faults in commits, pulls, layouts and the buffer's conditions."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lakesync.buffer import item_format
from lakesync.buffer.memory_buffer import MemoryBuffer
from lakesync.core.clock import HybridLogicalClock
from lakesync.core.layout import MAIN_LANE, Lanes, Layout
from lakesync.core.merge import Admission, Gate
from lakesync.gateway import pull as pull_module
from lakesync.gateway import push as push_module
from lakesync.gateway.pull import PullService
from lakesync.gateway.push import PushService
from lakesync.log import commit as commit_module
from lakesync.log import declare as declare_module
from lakesync.log import lanes as lanes_module
from lakesync.log import log_cache, push_parts
from lakesync.log import read as final_log
from lakesync.log.commit import Committer
from lakesync.log.read import ReadBarrier
from lakesync.maintenance.flush import Flusher
from lakesync.ports import NO_HEAD, Head, HeadBusy, HeadMoved, LogSlice
from lakesync.wire.records import decode_records
from tests.simulation.deliberate.registry import Replaced, deliberate
from tests.simulation.themes import CONFLICTING, LANES, SET_UP_ANEW, SKEWED

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lakesync.core.delta import Delta
    from lakesync.core.messages import Pull, PullPage, Push, PushReceipt
    from lakesync.log.read import FinalLog
    from lakesync.ports import Commit

# --- whose gateway it is --------------------------------------------------------------------------


@deliberate("a gateway does not look which gateway a push names", SET_UP_ANEW)
def any_push_is_taken() -> list[Replaced]:
    return [(commit_module, "check_epoch", lambda *_: None)]


@deliberate("a gateway does not look which gateway a pull names", SET_UP_ANEW)
def any_pull_is_answered() -> list[Replaced]:
    return [(pull_module, "check_identity", lambda *_: None)]


# --- pulls ----------------------------------------------------------------------------------------


@deliberate("a page's cursor is the greatest stamp of its deltas")
def cursor_by_client_stamp() -> list[Replaced]:
    real = PullService.pull

    def pull(self: PullService, gateway: str, request: Pull) -> PullPage:
        page = real(self, gateway, request)
        stamps = [delta.hlc for run in page.records for delta in decode_records(run)]
        return replace(page, cursor=max([request.since, *stamps]))

    return [(PullService, "pull", pull)]


@deliberate("a pull reads several lanes without raising their heads", LANES)
def no_fence() -> list[Replaced]:
    def raised(
        self: ReadBarrier, gateway: str, lane: str, head: Head | None, to: int, *others: object
    ) -> tuple[Head, int]:
        del self, gateway, lane, others
        return head or NO_HEAD, to

    return [(ReadBarrier, "_raise", raised), (ReadBarrier, "_try_raise", raised)]


@deliberate("a page that is not the last has the newest commit as its cursor")
def cursor_at_the_top() -> list[Replaced]:
    real = PullService.pull

    def pull(self: PullService, gateway: str, request: Pull) -> PullPage:
        page = real(self, gateway, request)
        if not page.has_more:
            return page
        top = max(head.commit for head in self._buffer.heads(gateway).values())
        return replace(page, cursor=top, has_more=False)

    return [(PullService, "pull", pull)]


@deliberate("a page ends inside a commit")
def pages_cut_commits() -> list[Replaced]:
    def each(entries: Iterable[Any], key: object) -> list[tuple[int, list[Any]]]:
        del key
        return [(entry.stamp, [entry]) for entry in entries]

    return [(pull_module, "groupby", each)]


@deliberate("a log entry that is not visible yet is taken for none")
def gaps_are_accepted() -> list[Replaced]:
    return [(LogSlice, "is_chain", lambda *_: True)]


@deliberate("what lies in the heads is not read")
def recent_entries_are_not_read() -> list[Replaced]:
    real = final_log.read

    def read(source: Any, log: FinalLog, lane: str, *rest: Any) -> Any:
        head = replace(log.heads[lane], recent=())
        return real(source, replace(log, heads={**log.heads, lane: head}), lane, *rest)

    return [(log_cache, "read", read)]


@deliberate("what lay in a head is gone when it has no room for a new entry")
def full_heads_lose_entries() -> list[Replaced]:
    real = push_parts.lane_commit

    def lane_commit(*args: Any) -> Any:
        made = real(*args)
        return replace(made, chunk=made.chunk[-1:])

    return [(commit_module, "lane_commit", lane_commit)]


# --- lanes ----------------------------------------------------------------------------------------


@deliberate("a pull reads the open lanes only", LANES)
def closed_lanes_are_not_read() -> list[Replaced]:
    return [(Lanes, "used", Lanes.open)]


@deliberate("a lane is taken off the list before its head is closed", LANES)
def lanes_are_unlisted_first() -> list[Replaced]:
    real = lanes_module.close_lanes

    def close(buffer: Any, gateway: str, heads: Any, stay: Any) -> bool:
        main = heads[MAIN_LANE]
        quiet = max(head.last_logged for head in heads.values())
        if not buffer.change_lanes(gateway, main, main.lanes.closing(stay, quiet)):
            return False
        return real(buffer, gateway, {**heads}, stay)

    return [(lanes_module, "close_lanes", close), (declare_module, "close_lanes", close)]


@deliberate("what a flush leaves open is not looked at again", LANES)
def lanes_stay_open() -> list[Replaced]:
    return [(Flusher, "close_lanes", lambda *_: None)]


@deliberate("a lane counts as closed though somebody was at its head", CONFLICTING)
def busy_lanes_count_as_closed() -> list[Replaced]:
    return [(lanes_module, "_was_closed", lambda *_: True)]


@deliberate("a lane is closed whoever opened it again meanwhile", LANES)
def lists_of_lanes_are_overwritten() -> list[Replaced]:
    def check(main: Head | None, seen: Head | None, to: int) -> None:
        now = main or NO_HEAD
        if (main is None) != (seen is None) or (to and now.commit >= to):
            raise HeadMoved({MAIN_LANE: now})

    return [(item_format, "check_lanes", check)]


@deliberate("a configuration comes into force while lanes are open", LANES)
def configurations_change_under_open_lanes() -> list[Replaced]:
    return [(Lanes, "open", lambda _: [MAIN_LANE])]


@deliberate("a commit's stamp may be below what its row was written at", LANES)
def rows_go_back_in_time() -> list[Replaced]:
    return [(push_parts.Outcome, "seen", lambda _: 0)]


# --- commits --------------------------------------------------------------------------------------


@deliberate("a commit does not ask whether its heads still stand")
def heads_are_not_conditional() -> list[Replaced]:
    return [(item_format, "check_heads", lambda *_: None)]


@deliberate("a commit does not ask whether its rows and marks are as they were read")
def rows_are_not_conditional() -> list[Replaced]:
    return [(item_format, "check_states", lambda *_: None)]


@deliberate("a commit that met another transaction at a head counts as done", CONFLICTING)
def conflicts_count_as_commits() -> list[Replaced]:
    real = Committer._write_once

    def write_once(self: Committer, commit: Commit, deadline_ms: int) -> None:
        with suppress(HeadBusy):
            real(self, commit, deadline_ms)

    return [(Committer, "_write_once", write_once)]


@deliberate("a commit's stamp is the wall clock, whatever the heads say")
def stamps_by_wall_clock() -> list[Replaced]:
    class WallClock(HybridLogicalClock):
        def now(self, wall_ms: int) -> int:
            return (wall_ms << 16) + (self.last & 0xFF) + 1

    return [(commit_module, "HybridLogicalClock", WallClock)]


@deliberate("an atomic push is committed in parts")
def atomic_pushes_are_cut() -> list[Replaced]:
    real = PushService._push

    def push(self: PushService, gateway: str, request: Push, *times_ms: int) -> PushReceipt:
        return real(self, gateway, replace(request, atomic=False), *times_ms)

    return [(PushService, "_push", push)]


@deliberate("a refused delta is not mentioned in the receipt")
def refusals_are_silent() -> list[Replaced]:
    real = PushService._admit

    def admit(self: PushService, config: Any, push: Push, now_ms: int) -> Any:
        admitted, _ = real(self, config, push, now_ms)
        return admitted, []

    return [(PushService, "_admit", admit)]


@deliberate("the receipt is written before the commit")
def answered_before_committed() -> list[Replaced]:
    real = MemoryBuffer.commit

    def dropped(self: MemoryBuffer, commit: Commit) -> None:
        number = int("".join(letter for letter in commit.token if letter.isdigit()) or 0)
        if number % 8:
            real(self, commit)

    return [(MemoryBuffer, "commit", dropped)]


# --- events and layouts ---------------------------------------------------------------------------


@deliberate("a repeated event is taken for a new one")
def events_are_counted_twice() -> list[Replaced]:
    def admit(self: Gate, delta: Delta) -> Admission:
        del self, delta
        return Admission.NEW

    return [(Gate, "admit", admit)]


@deliberate("a table is placed anew, and the marks of its events stay behind")
def relaned_without_marks() -> list[Replaced]:
    real = Layout.moved

    def moved(self: Layout, table: str, shard: str) -> Layout:
        return replace(real(self, table, shard), moves=self.moves)

    return [(Layout, "moved", moved)]


@deliberate("a table is placed anew, and the states of its rows stay behind")
def relaned_without_states() -> list[Replaced]:
    real = MemoryBuffer.save_config

    def save(self: MemoryBuffer, gateway: str, config: Any, *rest: Any, **named: Any) -> None:
        before = self.config(gateway).layout
        real(self, gateway, config, *rest, **named)
        rows = self._of(gateway).rows
        for table, row_id in list(rows):
            if before.shard_of(table) != config.layout.shard_of(table):
                del rows[table, row_id]

    return [(MemoryBuffer, "save_config", save)]


@deliberate("a stamp from the future is accepted", SKEWED | {"client_skew_ms": 86_400_000})
def drift_is_accepted() -> list[Replaced]:
    return [(push_module, "check_drift", lambda *_: None)]
