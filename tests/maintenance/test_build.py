"""Checkpoints: the rows byte for byte, whoever dies while they are built."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakesync.buffer.memory_buffer import MemoryBuffer
from lakesync.checkpoint import store
from lakesync.checkpoint.store import (
    Checkpoints,
    began_ms_of,
    digest,
    manifest_key,
    progress_key,
    since_of,
)
from lakesync.core.delta import CHANGES, Op, checked_delta, make_delta
from lakesync.errors import AdapterFailed, CursorExpired, LakeSyncError, Unavailable
from lakesync.maintenance import checkpoint_upkeep
from lakesync.maintenance.horizons import begin_epoch
from lakesync.wire.records import decode_records
from tests.support.builders import WALL_MS, at_ms, delete, insert, update
from tests.support.checkpoints import MINUTE_MS, Kept, Reader
from tests.support.gateways import GATEWAY
from tests.support.lake import Killed, Life
from tests.support.some import some

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

    from lakesync.core.delta import Delta
    from lakesync.ports import Head


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "PART_DELTAS_MAX", 3)


@st.composite
def _change(draw: st.DrawFn) -> Delta:
    op = draw(st.sampled_from(CHANGES))
    columns = {} if op is Op.DELETE else draw(
        st.dictionaries(st.sampled_from("pqr"), st.sampled_from([None, 1, "x"]), max_size=3)
    )  # fmt: skip
    return make_delta(
        op,
        draw(st.sampled_from(["notes", "todos"])),
        draw(st.sampled_from(["r1", "r2", "r3", "\u00e9"])),
        columns,
        client_id=draw(st.sampled_from(["a", "b"])),
        hlc=at_ms(draw(st.integers(1, 9))),
    )


changes: SearchStrategy[list[Delta]] = st.lists(_change(), max_size=12)


@pytest.mark.law("R1")
@settings(deadline=None)
@given(before=changes, during=changes, after=changes, deltas_max=st.sampled_from([1, 2, 100]))
def test_bootstrap_from_a_checkpoint_gives_the_same_rows_as_the_whole_log(
    before: list[Delta], during: list[Delta], after: list[Delta], deltas_max: int
) -> None:
    gateway = Kept(chunk_bytes=600)
    gateway.push(*before)
    gateway.flushed()
    waiting = iter(during)

    def push_one() -> bool:
        gateway.push(*itertools.islice(waiting, 1))
        return True

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "PART_DELTAS_MAX", 2)
        patch.setattr(store, "_SLICE_ROWS_MAX", 2)
        gateway.build(push_one)
    gateway.push(*waiting)
    gateway.push(*after)

    replayed = Reader(gateway, deltas_max=deltas_max).read(snapshot="")
    begun = Reader(gateway, deltas_max=deltas_max)

    assert begun.read() == replayed == gateway.rows()
    gateway.trim(covered=max(map(since_of, gateway.checkpoints.ids(GATEWAY)), default=None))
    assert Reader(gateway, deltas_max=deltas_max).read() == replayed


@pytest.mark.law("M9")
@pytest.mark.parametrize("was_deleted", [True, False])
def test_checkpoint_contains_a_row_larger_than_the_delta_limit(*, was_deleted: bool) -> None:
    half = "x" * 150_000
    gateway = Kept()
    if was_deleted:
        gateway.push(insert(at=at_ms(1)), delete(at=at_ms(2)))
    gateway.push(insert(at=at_ms(3), a=half), update(at=at_ms(3), b=half))
    gateway.push(insert("r2", at=at_ms(4), n=1))
    gateway.flushed()

    assert gateway.build().finished

    runs = gateway.runs_of(gateway.latest())
    assert all(d == checked_delta(*d[:6]) for run in runs for d in decode_records(run))
    assert Reader(gateway).read() == gateway.rows()


def busy(chunk_bytes: int = 600) -> Kept:
    """Return a gateway with two tables of some rows, all of it flushed."""
    gateway = Kept(chunk_bytes=chunk_bytes)
    for number in range(20):
        gateway.push(insert(f"r{number}", at=at_ms(number), n=number, title="t" * number))
    gateway.push(update("r3", at=at_ms(50), client="b", n=5), delete("r4", at=at_ms(51)))
    gateway.push(insert("n1", at=at_ms(52), table="notes", n=1))
    gateway.flushed()
    return gateway


@pytest.mark.law("R2")
@pytest.mark.usefixtures("small_parts")
def test_build_killed_at_any_call_is_finished_by_the_next_with_the_same_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(store, "_SLICE_ROWS_MAX", 4)
    whole = busy()
    whole.build()
    assert len(whole.latest().tables["todos"].chunks) > 3
    for calls, last_happens in itertools.product(range(100), (False, True)):
        gateway = busy()
        gateway.time.now_ms = whole.time.now_ms
        try:
            gateway.builder(Life(calls, last_happens=last_happens)).build(GATEWAY)
        except Killed:
            gateway.build()
            assert gateway.bodies() == whole.bodies()
        else:
            assert calls > 3
            assert gateway.bodies() == whole.bodies()
            return
    pytest.fail("a build takes more calls than this test allows")


@pytest.mark.law("R2")
@pytest.mark.usefixtures("small_parts")
def test_build_that_ran_out_of_time_continues_where_it_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(store, "_SLICE_ROWS_MAX", 1)
    whole, gateway = busy(), busy()
    whole.build()

    reports: list[checkpoint_upkeep.BuildReport] = []
    while len(reports) < 50 and not (reports and reports[-1].finished):
        left = iter([True] * 24)
        reports.append(gateway.build(lambda left=left: next(left, False)))  # type: ignore[misc]
        gateway.time.now_ms += 1

    assert len(reports) > 2
    assert {report.checkpoint for report in reports} == {gateway.latest().id}
    assert sum(report.rows for report in reports) == len(gateway.rows())
    assert replace(gateway.latest(), epoch=whole.epoch()) == whole.latest()


@pytest.mark.law("R2")
@pytest.mark.usefixtures("small_parts")
def test_concurrent_builds_leave_only_correct_manifests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(store, "_SLICE_ROWS_MAX", 2)
    gateway = busy()
    number = iter(range(100, 200))

    def meanwhile() -> bool:
        at = next(number)
        if at % 4 == 0 and at < 130:
            gateway.push(insert(f"x{at}", at=at_ms(at)), update("r1", at=at_ms(at), n=at))
            left = iter([True] * 19)
            gateway.build(lambda: next(left, False))
        return True

    gateway.build(meanwhile)
    gateway.build()

    for checkpoint in some(gateway.checkpoints.ids(GATEWAY)):
        manifest = gateway.checkpoints.manifest(GATEWAY, checkpoint)
        for table in manifest.tables.values():
            for chunk in table.chunks:
                body = gateway.objects.get_object(chunk.key)
                assert (len(body), digest(body)) == (chunk.size, chunk.sha256)
                assert sum(part.size for part in chunk.parts) == chunk.size
        assert gateway.runs_of(manifest)
    assert Reader(gateway).read() == gateway.rows()


@pytest.mark.law("R2", "R3")
@pytest.mark.usefixtures("small_parts")
def test_manifest_that_another_process_wrote_is_not_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(store, "_SLICE_ROWS_MAX", 1)
    gateway = busy()
    left = iter([True] * 24)
    assert not gateway.build(lambda: next(left, False)).finished
    written: list[bytes] = []

    def meanwhile() -> bool:
        if not written:
            gateway.build()
            written.append(gateway.objects.bodies[manifest_key(GATEWAY, gateway.latest().id)])
            gateway.push(insert("r00", at=at_ms(99), n=1))
        return True

    done = gateway.build(meanwhile)

    assert [gateway.objects.bodies[manifest_key(GATEWAY, done.checkpoint)]] == written


@pytest.mark.law("R2")
def test_chunks_do_not_exceed_their_size_limit() -> None:
    gateway = busy(chunk_bytes=700)
    gateway.build()

    sizes = [chunk.size for table in gateway.latest().tables.values() for chunk in table.chunks]

    assert len(sizes) > 3
    assert max(sizes) <= 700


def test_row_larger_than_the_chunk_limit_has_its_own_part() -> None:
    gateway = busy(chunk_bytes=100)
    gateway.build()

    table = gateway.latest().tables["todos"]

    assert [part.rows for chunk in table.chunks for part in chunk.parts] == [1] * 20


def test_parts_do_not_exceed_the_page_size_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "PART_BYTES_MAX", 500)
    gateway = busy(chunk_bytes=1 << 20)
    gateway.build()

    (chunk,) = gateway.latest().tables["todos"].chunks

    assert max(part.size for part in chunk.parts) <= 500
    assert sum(part.rows for part in chunk.parts) == 20


def test_manifest_counts_the_tombstones_of_each_table() -> None:
    gateway = busy()
    gateway.push(delete("n1", table="notes", at=at_ms(60)), delete("r5", at=at_ms(61)))
    gateway.flushed()
    gateway.build()

    tables = gateway.latest().tables

    assert (tables["todos"].tombstones.count, tables["todos"].tombstones.oldest) == (2, at_ms(51))
    assert tables["notes"].tombstones.count == 1


def test_checkpoint_is_not_built_without_changes_or_before_it_is_due() -> None:
    gateway = busy()
    hour_ms = 60 * MINUTE_MS
    first = gateway.build()
    gateway.time.now_ms += 10 * hour_ms
    assert gateway.build() == checkpoint_upkeep.BuildReport(first.checkpoint, first.since)

    gateway.push(update("r1", at=at_ms(70), n=1))
    gateway.flushed()
    build_now = gateway.builder().build
    assert build_now(GATEWAY, every_ms=24 * hour_ms).checkpoint == first.checkpoint
    assert build_now(GATEWAY, every_ms=hour_ms).checkpoint > first.checkpoint
    assert len(gateway.checkpoints.ids(GATEWAY)) == 2


def test_checkpoint_is_due_when_sync_rules_are_newer() -> None:
    gateway = busy()
    first = gateway.build()
    mine = {"column": "owner", "op": "eq", "value": "jwt:sub"}
    body = {"version": 1, "buckets": [{"name": "mine", "tables": [], "filters": [mine]}]}
    gateway.admin.save_rules(GATEWAY, body)
    gateway.time.now_ms += 10 * MINUTE_MS

    manifest = gateway.builder().build(GATEWAY, every_ms=1 << 40)

    assert manifest.checkpoint > first.checkpoint
    assert manifest.since >= gateway.buffer.config(GATEWAY).logged.since


def test_gateway_without_flushed_data_has_no_checkpoint() -> None:
    assert Kept().build() == checkpoint_upkeep.BuildReport()
    unflushed = Kept()
    unflushed.push(insert("r1", at=at_ms(1)))
    assert unflushed.build() == checkpoint_upkeep.BuildReport()
    assert unflushed.objects.bodies == {}


def test_checkpoint_includes_tables_of_other_shards_and_omits_append_tables() -> None:
    gateway = Kept()
    gateway.admin.place_table(GATEWAY, "notes", "hot")
    body = {"table": "events", "columns": [{"name": "n", "type": "integer"}], "append": True}
    gateway.admin.register_schema(GATEWAY, body)
    gateway.push(
        *[insert(f"n{number}", at=at_ms(number), table="notes") for number in range(5)],
        insert("e1", at=at_ms(9), table="events", n=1),
    )
    gateway.flushed()
    gateway.build()

    assert set(gateway.latest().tables) == {"notes"}


@pytest.mark.law("R2")
@pytest.mark.parametrize("late", ["epoch", "trim", "age"])
def test_interrupted_build_restarts_after_a_new_epoch_a_trim_or_too_long_a_pause(late: str) -> None:
    gateway = busy()
    killed = gateway.builder(Life(2))
    with pytest.raises(Killed):
        killed.build(GATEWAY)
    assert progress_key(GATEWAY) in gateway.objects.bodies
    gateway.push(insert("new", at=at_ms(80)))
    gateway.flushed()
    if late == "epoch":
        begin_epoch(gateway.buffer, GATEWAY, wall_clock=gateway.time.wall_clock)
        gateway.time.now_ms += 10 * MINUTE_MS
    elif late == "trim":
        gateway.trim()
    else:
        gateway.time.now_ms += checkpoint_upkeep.PROGRESS_MS_MAX

    report = gateway.build()

    assert report.rows == len(gateway.rows())
    assert Reader(gateway).read() == gateway.rows()


def test_build_fails_when_the_store_is_unavailable() -> None:
    class Away(MemoryBuffer):
        def heads(self, *_: object, **__: object) -> dict[str, Head]:
            raise Unavailable("away")

    gateway = busy()
    gateway.buffer.__class__ = Away

    with pytest.raises(LakeSyncError):
        gateway.builder().build(GATEWAY)


# --- the store


def test_manifest_is_unchanged_when_read_again() -> None:
    gateway = busy()
    gateway.build()

    again = Checkpoints(gateway.objects).manifest(GATEWAY, gateway.latest().id)

    assert again == gateway.latest()
    assert (again.gateway, again.since > 0) == (GATEWAY, True)


def test_missing_or_damaged_part_is_reported() -> None:
    gateway = busy()
    gateway.build()
    manifest = gateway.latest()
    place = manifest.tables["todos"].place(0)
    assert place is not None
    body = gateway.objects.bodies[place.key]
    for damaged in (body[: place.part.size - 1], b"\0" + body):
        gateway.objects.bodies[place.key] = damaged
        with pytest.raises(AdapterFailed, match="manifest"):
            gateway.checkpoints.part(GATEWAY, manifest.id, place)
    del gateway.objects.bodies[place.key]
    with pytest.raises(Exception, match="no object"):
        gateway.checkpoints.part(GATEWAY, manifest.id, place)
    for key in list(gateway.objects.bodies):
        gateway.objects.delete_object(key)
    with pytest.raises(CursorExpired):
        gateway.checkpoints.part(GATEWAY, manifest.id, place)
    with pytest.raises(CursorExpired):
        Checkpoints(gateway.objects).manifest(GATEWAY, manifest.id)


def test_objects_that_are_not_checkpoints_are_not_listed() -> None:
    gateway = busy()
    gateway.build()
    gateway.objects.put_object(f"checkpoints/{GATEWAY}/manifests/notes.txt", b"", "text/plain")

    assert gateway.checkpoints.ids(GATEWAY) == [gateway.latest().id]
    assert gateway.checkpoints.ids("g") == []


def test_checkpoint_id_contains_the_time_of_its_build() -> None:
    gateway = busy()
    gateway.build()

    assert began_ms_of(gateway.latest().id) == gateway.time.now_ms > WALL_MS
