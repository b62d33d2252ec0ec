"""Which checkpoints are kept, what the log keeps for them, and cleaning that may die anywhere."""

from __future__ import annotations

import pytest

from lakesync.checkpoint.store import since_of
from lakesync.errors import AdapterFailed, LakeSyncError
from lakesync.maintenance.checkpoint_upkeep import KEEP_MS, PROGRESS_MS_MAX, CleanReport, Keeper
from lakesync.maintenance.horizons import begin_epoch
from tests.support.builders import at_ms, insert
from tests.support.checkpoints import MINUTE_MS, Kept, Reader
from tests.support.gateways import GATEWAY
from tests.support.lake import Killed, Life
from tests.support.some import some

HOUR_MS = 60 * MINUTE_MS


def several(count: int, *, apart_ms: int = 13 * HOUR_MS) -> Kept:
    """Return a gateway with some checkpoints, built so far apart."""
    gateway = Kept(chunk_bytes=200)
    for number in range(count):
        gateway.time.now_ms += apart_ms
        gateway.push(insert(f"r{number}", at=at_ms(number), n=number))
        gateway.push(insert(f"s{number}", at=at_ms(number), n=number))
        gateway.flushed()
        gateway.build()
    return gateway


def keeper(gateway: Kept, life: Life | None = None) -> Keeper:
    objects = life.of(gateway.objects) if life else gateway.objects
    return Keeper(objects, gateway.checkpoints, wall_clock=gateway.time.wall_clock)


@pytest.mark.law("R4")
def test_latest_two_checkpoints_and_those_of_the_last_day_are_kept() -> None:
    gateway = several(5)
    ids = gateway.checkpoints.ids(GATEWAY)

    assert keeper(gateway).kept(GATEWAY, gateway.epoch()) == ids[-2:]
    gateway.time.now_ms += 100 * KEEP_MS
    assert keeper(gateway).kept(GATEWAY, gateway.epoch()) == ids[-2:]
    young = several(5, apart_ms=HOUR_MS)
    assert keeper(young).kept(GATEWAY, young.epoch()) == young.checkpoints.ids(GATEWAY)
    assert len(young.checkpoints.ids(GATEWAY)) == 5


@pytest.mark.law("R4")
def test_log_is_trimmed_no_further_than_the_oldest_kept_checkpoint() -> None:
    gateway = several(5)
    first_sync = Reader(gateway, deltas_max=1)
    kept = keeper(gateway).kept(GATEWAY, gateway.epoch())
    covered = keeper(gateway).covered(GATEWAY, gateway.epoch())

    gateway.trim(covered=covered)

    assert covered == since_of(kept[0])
    assert gateway.buffer.heads(GATEWAY)["main"].trimmed == covered
    assert first_sync.read() == gateway.rows()
    assert keeper(Kept()).covered(GATEWAY, "") == 0


@pytest.mark.law("R4")
def test_cleaning_keeps_whole_checkpoints_and_removes_the_rest() -> None:
    gateway = several(5)
    kept = keeper(gateway).kept(GATEWAY, gateway.epoch())
    gateway.time.now_ms += 2 * KEEP_MS

    assert keeper(gateway).clean(GATEWAY, gateway.epoch()).objects > 3

    assert gateway.checkpoints.ids(GATEWAY) == kept
    assert all(any(name in key for name in kept) for key in gateway.objects.bodies)
    for name in some(kept):
        assert gateway.runs_of(gateway.checkpoints.manifest(GATEWAY, name))
    assert keeper(gateway).clean(GATEWAY, gateway.epoch()) == CleanReport()


@pytest.mark.law("R4")
def test_cleaning_killed_at_any_call_is_finished_by_the_next() -> None:
    whole = several(4)
    whole.time.now_ms += 2 * KEEP_MS
    keeper(whole).clean(GATEWAY, whole.epoch())
    for calls in range(40):
        gateway = several(4)
        gateway.time.now_ms += 2 * KEEP_MS
        try:
            keeper(gateway, Life(calls)).clean(GATEWAY, gateway.epoch())
        except Killed:
            for name in some(gateway.checkpoints.ids(GATEWAY)):
                assert gateway.runs_of(gateway.checkpoints.manifest(GATEWAY, name))
            keeper(gateway).clean(GATEWAY, gateway.epoch())
            assert gateway.bodies() == whole.bodies()
        else:
            assert calls > 1
            return
    pytest.fail("cleaning takes more calls than this test allows")


@pytest.mark.law("R4")
def test_cleaning_keeps_chunks_of_a_build_in_progress() -> None:
    gateway = several(1)
    gateway.push(insert("new", at=at_ms(90)))
    gateway.flushed()
    with pytest.raises(Killed):
        gateway.builder(Life(3)).build(GATEWAY)
    before = dict(gateway.objects.bodies)
    gateway.time.now_ms += PROGRESS_MS_MAX

    keeper(gateway).clean(GATEWAY, gateway.epoch())

    assert gateway.objects.bodies == before
    gateway.build()
    gateway.time.now_ms += 2 * PROGRESS_MS_MAX
    keeper(gateway).clean(GATEWAY, gateway.epoch())
    assert Reader(gateway).read() == gateway.rows()


@pytest.mark.law("R4")
def test_checkpoints_of_another_epoch_are_not_kept() -> None:
    gateway = several(2)
    epoch = begin_epoch(gateway.buffer, GATEWAY, wall_clock=gateway.time.wall_clock)

    assert keeper(gateway).kept(GATEWAY, epoch) == []
    assert keeper(gateway).covered(GATEWAY, epoch) == 0
    keeper(gateway).clean(GATEWAY, epoch)
    assert gateway.checkpoints.ids(GATEWAY) == []


def test_cleaning_stops_when_its_time_is_up() -> None:
    gateway = several(4)
    left = iter([True])

    report = keeper(gateway).clean(GATEWAY, gateway.epoch(), has_time=lambda: next(left, False))

    assert report == CleanReport(1, finished=False)


def test_cleaning_fails_when_the_store_is_unavailable() -> None:
    gateway = several(1)

    def list_objects(_: str) -> list[str]:
        raise AdapterFailed("away")

    gateway.objects.list_objects = list_objects  # type: ignore[method-assign,assignment]

    with pytest.raises(LakeSyncError):
        keeper(gateway).clean(GATEWAY, gateway.epoch())
