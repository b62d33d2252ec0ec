"""Faults in commits, pulls, layouts and the buffer's conditions."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lakesync.buffer import conditions
from lakesync.buffer.memory import MemoryBuffer
from lakesync.core.append import Admission, Gate
from lakesync.core.clock import HybridLogicalClock
from lakesync.core.layout import Layout
from lakesync.gateway import pull as pull_module
from lakesync.gateway import push as push_module
from lakesync.gateway.pull import PullService
from lakesync.gateway.push import PushService
from lakesync.log import commit as commit_module
from lakesync.log import read_barrier
from lakesync.log import row_cache as warm_module
from lakesync.log.read_barrier import ReadBarrier
from lakesync.ports import NO_HEAD, Head
from lakesync.wire.records import decode_records
from tests.simulation.deliberate.registry import Replaced, deliberate
from tests.simulation.store import Store
from tests.simulation.themes import MOVES, SKEWED, TORN_MOVES, WARM

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lakesync.core.delta import Delta
    from lakesync.core.layout import Placement
    from lakesync.core.messages import Pull, PullPage, Push, PushReceipt
    from lakesync.log.row_cache import CachedShard
    from lakesync.ports import Commit

# --- pulls ----------------------------------------------------------------------------------------


@deliberate("a page's cursor is the greatest stamp of its deltas")
def cursor_by_client_stamp() -> list[Replaced]:
    real = PullService.pull

    def pull(self: PullService, gateway: str, request: Pull) -> PullPage:
        page = real(self, gateway, request)
        stamps = [delta.hlc for run in page.records for delta in decode_records(run)]
        return replace(page, cursor=max([request.since, *stamps]))

    return [(PullService, "pull", pull)]


@deliberate("a pull reads several shards without raising their heads")
def no_fence() -> list[Replaced]:
    def raised(self: ReadBarrier, gateway: str, shard: str, head: Head | None, top: int) -> Head:
        del self, gateway, shard, top
        return head or NO_HEAD

    return [(ReadBarrier, "_raised", raised)]


@deliberate("a page that is not the last has the newest commit as its cursor")
def cursor_at_the_top() -> list[Replaced]:
    real = PullService.pull

    def pull(self: PullService, gateway: str, request: Pull) -> PullPage:
        page = real(self, gateway, request)
        top = max(
            head.commit
            for head in self._buffer.heads(gateway, self._buffer.config(gateway).layout.shards())
            .values()
        ) if page.has_more else page.cursor  # fmt: skip
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
    return [(read_barrier, "is_chain", lambda *_: True)]


@deliberate("a warm function catches up over an entry that is not visible yet", WARM)
def warm_rows_over_gaps() -> list[Replaced]:
    return [(warm_module, "is_chain", lambda *_: True)]


@deliberate("a pull reads the shards of the present layout only")
def former_shards_are_forgotten() -> list[Replaced]:
    def moved(self: Layout, table: str, placement: Placement) -> Layout:
        return replace(self, tables={**self.tables, table: placement}, moves=self.moves + 1)

    return [(Layout, "moved", moved)]


@deliberate("a row that was only read is caught up as if it had been whole", WARM | {"rows": 1})
def read_rows_are_caught_up() -> list[Replaced]:
    real = warm_module._apply_logged

    def meet(shard: CachedShard, delta: Delta, stamp: int) -> None:
        shard.unvalidated.clear()
        real(shard, delta, stamp)

    return [(warm_module, "_apply_logged", meet)]


# --- commits --------------------------------------------------------------------------------------


@deliberate("a commit does not ask whether its heads still stand")
def heads_are_not_conditional() -> list[Replaced]:
    return [(conditions, "check_heads", lambda *_: None)]


@deliberate("a commit does not ask whether its rows and marks are as they were read")
def rows_are_not_conditional() -> list[Replaced]:
    return [(conditions, "check_states", lambda *_: None)]


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

    def moved(self: Layout, table: str, placement: Placement) -> Layout:
        return replace(real(self, table, placement), moves=self.moves)

    return [(Layout, "moved", moved)]


@deliberate("a table is placed anew, and the states of its rows stay behind")
def relaned_without_states() -> list[Replaced]:
    real = MemoryBuffer.save_config

    def save(self: MemoryBuffer, gateway: str, config: Any, to: int, epoch: str = "") -> None:
        before = self.config(gateway).layout
        real(self, gateway, config, to, epoch)
        rows = self._of(gateway).rows
        for key in list(rows):
            if before.shard_of(*key) != config.layout.shard_of(*key):
                del rows[key]

    return [(MemoryBuffer, "save_config", save)]


@deliberate("a new shard's head begins at 0", MOVES | {"bursts": 8, "clients": 3})
def new_shards_begin_at_zero() -> list[Replaced]:
    real = MemoryBuffer.save_config

    def save(self: MemoryBuffer, gateway: str, config: Any, to: int, epoch: str = "") -> None:
        heads = self._of(gateway).heads
        new = [shard for shard in config.layout.shards() if shard not in heads]
        real(self, gateway, config, to, epoch)
        for shard in new:
            heads[shard] = replace(heads[shard], commit=0)

    return [(MemoryBuffer, "save_config", save)]


@deliberate("marks of other shards are joined as they look just now", TORN_MOVES)
def marks_are_joined_unserializably() -> list[Replaced]:
    return [(Store, "read_marks_serializable", Store.marks)]


@deliberate("a stamp from the future is accepted", SKEWED | {"client_skew_ms": 86_400_000})
def drift_is_accepted() -> list[Replaced]:
    return [(push_module, "check_drift", lambda *_: None)]
