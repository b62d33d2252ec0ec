"""Erasure of rows: no value is left in any store, whenever whoever does it dies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from lakesync.adapters.lake.parquet import ParquetEncoder
from lakesync.checkpoint.store import Checkpoints
from lakesync.cli.erasure import copies
from lakesync.core.clock import VISIBLE_MS_MAX
from lakesync.core.merge import EMPTY, apply
from lakesync.core.messages import SNAPSHOT, Pull
from lakesync.errors import Conflict, CursorExpired
from lakesync.gateway.pull import PullService
from lakesync.maintenance.checkpoint_upkeep import Builder
from lakesync.maintenance.erasure import Eraser, ErasureReport
from lakesync.maintenance.flush import Flusher
from tests.support.builders import WALL_MS, at_ms, delete, insert, update
from tests.support.gateways import (
    GATEWAY,
    GatewayWorld,
    GivenTime,
    deltas_of,
    pulled,
    puller,
)
from tests.support.lake import Killed, Life, Messages, Objects

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakesync.core.merge import RowState

ANN = ("todos", "ann")
SECRET = "the value that has to go"


class World(GatewayWorld):
    """A gateway with a row that lies in a checkpoint, in the log and in a head."""

    def __init__(self, *, checkpoint: bool = True) -> None:
        super().__init__(time=GivenTime(WALL_MS))
        self.objects = Objects()
        self.flusher = Flusher(self.buffer, self.objects, Messages(), ParquetEncoder(), Messages())
        self.send(insert("ann", at=at_ms(1), title=SECRET), insert("bob", at=at_ms(2), title="b"))
        self.send(update("ann", at=at_ms(3), text=SECRET * 200))  # more than lies in a head
        self.pass_ms(VISIBLE_MS_MAX * 2)
        self.flusher.flush(GATEWAY)
        if checkpoint:
            Builder(
                self.buffer, self.objects, Checkpoints(self.objects),
                wall_clock=self.time.wall_clock,
            ).build(GATEWAY)  # fmt: skip
        self.send(update("ann", at=at_ms(4), title=SECRET + "!"))

    def pass_ms(self, duration_ms: int) -> None:
        self.time.now_ms += duration_ms

    def delete(self) -> None:
        self.send(delete("ann", at=at_ms(9)))

    def eraser(self, life: Life | None = None) -> Eraser:
        """Return what erases, as a process that may die has it."""
        of: Callable[[Any], Any] = life.of if life else lambda port: port
        objects = of(self.objects)
        return Eraser(
            of(self.buffer), objects, Checkpoints(objects), wall_clock=self.time.wall_clock
        )

    def erased(self) -> ErasureReport:
        """Flush, wait and erase, as the command does it."""
        self.flusher.flush(GATEWAY)
        self.pass_ms(VISIBLE_MS_MAX + 1_000)
        return self.eraser().erase(GATEWAY, [ANN])

    def rows(self) -> set[tuple[str, str]]:
        service = PullService(
            self.buffer, wall_clock=self.time.wall_clock, checkpoints=Checkpoints(self.objects)
        )
        states: dict[tuple[str, str], RowState] = {}
        page = service.pull(GATEWAY, Pull("new", snapshot=SNAPSHOT))
        while True:
            for delta in deltas_of(page):
                key = delta.table, delta.row_id
                states[key] = apply(states.get(key, EMPTY), delta)
            if not page.has_more:
                return {key for key, state in states.items() if state.columns}
            page = service.pull(GATEWAY, Pull("new", page.cursor, snapshot=page.snapshot))

    def left(self) -> dict[str, int]:
        """Count what bears values of the row, apart from staged batches."""
        counted = copies(GATEWAY, ANN, self.buffer, self.objects, None)
        return {kind: number for kind, number in counted.items() if kind != "batches" and number}


@pytest.mark.law("E5")
@pytest.mark.parametrize("checkpoint", [True, False])
def test_erasure_removes_all_values_of_a_row_and_keeps_other_rows(*, checkpoint: bool) -> None:
    world = World(checkpoint=checkpoint)
    assert "log" in world.left()
    world.delete()
    assert "log" in world.left()

    assert world.erased().waits_for == ""

    assert world.left() == {}
    assert world.rows() == {("todos", "bob")}


@pytest.mark.law("E5")
def test_erasure_of_a_row_that_is_not_deleted_is_refused() -> None:
    world = World()
    before = world.left()

    with pytest.raises(Conflict, match="delete it first"):
        world.erased()
    assert world.left() == before


@pytest.mark.law("E5")
def test_erasure_waits_for_a_flush_and_for_pending_commits_to_become_visible() -> None:
    world = World()
    world.delete()

    assert world.eraser().erase(GATEWAY, [ANN]).waits_for == "flush"
    world.flusher.flush(GATEWAY)
    report = world.eraser().erase(GATEWAY, [ANN])
    assert (report.waits_for, report.ready_ms > world.time.now_ms) == ("time", True)
    world.time.now_ms = report.ready_ms
    assert world.eraser().erase(GATEWAY, [ANN]).waits_for == ""


@pytest.mark.law("E5")
def test_erasure_of_log_entries_in_a_head_waits_for_later_commits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("lakesync.log.push_parts.RECENT_BYTES_MAX", 100_000)
    world = World()
    world.delete()
    world.flusher.flush(GATEWAY)
    world.pass_ms(VISIBLE_MS_MAX + 1_000)
    world.send(insert("cid", at=at_ms(20), title="younger"))

    assert world.eraser().erase(GATEWAY, [ANN]).waits_for == "later commits"
    assert "log" in world.left()
    assert world.erased().waits_for == ""
    assert world.left() == {}


@pytest.mark.law("E5")
def test_erasure_killed_at_any_write_is_completed_by_the_next() -> None:
    for writes in range(60):
        world = World()
        world.delete()
        world.flusher.flush(GATEWAY)
        world.pass_ms(VISIBLE_MS_MAX + 1_000)
        try:
            world.eraser(Life(writes)).erase(GATEWAY, [ANN])
        except Killed:
            assert world.erased().waits_for == ""
            assert world.left() == {}
        else:
            assert writes > 5
            assert world.left() == {}
            return
    pytest.fail("an erasure takes more writes than this test allows")


@pytest.mark.law("E5")
def test_erasure_voids_cursors_before_the_deletion_and_keeps_current_ones() -> None:
    world = World()
    reader = puller(world.buffer, time_=world.time)
    old = reader.pull(GATEWAY, Pull("old")).cursor
    world.delete()
    current = reader.pull(GATEWAY, Pull("current")).cursor
    world.erased()

    with pytest.raises(CursorExpired):
        reader.pull(GATEWAY, Pull("old", old))
    assert pulled(world.buffer, GATEWAY, since=current) == []
