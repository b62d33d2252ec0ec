"""Snapshots that are read from a checkpoint: what is sent, to whom, and what is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakesync.checkpoint import store
from lakesync.checkpoint.store import Checkpoints
from lakesync.core.merge import view
from lakesync.core.messages import SNAPSHOT, Progress, Pull
from lakesync.errors import CursorExpired, LakeSyncError, ValidationFailed
from lakesync.gateway.filtered_reads import ResumeToken, resume_token_of
from lakesync.maintenance.horizons import begin_epoch
from lakesync.wire.records import decode_records, decode_row_state
from tests.support.builders import at_ms, delete, insert, update
from tests.support.checkpoints import MINUTE_MS, Kept, Reader
from tests.support.gateways import GATEWAY

if TYPE_CHECKING:
    from lakesync.core.messages import PullPage

MINE = {"column": "owner", "op": "eq", "value": "jwt:sub"}
OWNERS = ("ada", "bob")


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "PART_DELTAS_MAX", 4)


def rules(gateway: Kept, *filters: dict[str, Any]) -> None:
    columns = [{"name": "owner", "type": "string"}, {"name": "n", "type": "number"}]
    schema = {"table": "todos", "columns": columns}
    gateway.admin.register_schema(GATEWAY, schema)
    bucket = {"name": "mine", "tables": ["todos"], "filters": list(filters), "write": []}
    body = {"version": 1, "buckets": [bucket]}
    gateway.admin.save_rules(GATEWAY, body)
    gateway.time.now_ms += 10 * MINUTE_MS


def built(*, ruled: bool = False) -> Kept:
    """Return a gateway with a checkpoint of 12 rows, two of them written twice, and a tombstone."""
    gateway = Kept(chunk_bytes=1_500)
    if ruled:
        rules(gateway, MINE)
    for number in range(12):
        gateway.push(insert(f"r{number}", at=at_ms(number), owner=OWNERS[number % 2], n=number))
    gateway.push(update("r3", at=at_ms(50), client="b", n=33), delete("r4", at=at_ms(51)))
    gateway.push(update("r5", at=at_ms(52), client="b", n=55))
    gateway.flushed()
    gateway.build()
    return gateway


def refused(gateway: Kept, pull: Pull) -> LakeSyncError:
    with pytest.raises(LakeSyncError) as result:
        gateway.reader.pull(GATEWAY, pull)
    return result.value


@pytest.mark.law("R3")
@pytest.mark.parametrize("deltas_max", [1, 3, 4, 100])
@pytest.mark.parametrize("trimmed", [False, True])
def test_a_snapshot_is_read_from_the_latest_checkpoint(deltas_max: int, *, trimmed: bool) -> None:
    gateway = built()
    if trimmed:
        gateway.trim(covered=gateway.latest().since)
    gateway.push(update("r1", at=at_ms(60), n=1))
    gateway.buffer.scan_rows = None  # type: ignore[assignment,method-assign]
    reader = Reader(gateway, deltas_max=deltas_max)

    assert reader.read() == gateway.rows()
    of_rows = [page for page in reader.pages if page.snapshot]
    assert max(page.count for page in of_rows) <= deltas_max + 1  # less than a row beyond
    assert len(of_rows) >= 12 // deltas_max


@pytest.mark.law("R3")
def test_fully_visible_part_of_a_checkpoint_is_sent_as_stored() -> None:
    gateway = built()
    reader = Reader(gateway)
    reader.read()

    sent = [run for page in reader.pages if page.snapshot for run in page.records]

    assert sent == gateway.runs_of(gateway.latest())[: len(sent)]
    assert len(sent) > 2


@pytest.mark.law("K30")
@pytest.mark.parametrize("deltas_max", [1, 3, 100])
@pytest.mark.parametrize("sub", ["", "ada"])
def test_each_page_of_a_checkpoint_reports_its_progress(deltas_max: int, sub: str) -> None:
    gateway = built(ruled=bool(sub))
    reader = Reader(gateway, deltas_max=deltas_max, claims={"sub": sub} if sub else {})
    reader.read()

    shown = [page.progress for page in reader.pages if is_of_checkpoint(page)]
    assert None not in shown
    read = [each.read for each in shown if each]
    of_all = sum(table.rows for table in gateway.latest().tables.values())
    total = 100 if sub else of_all  # a reader from which rules hide rows cannot count those
    assert {each.total for each in shown if each} == {total}
    assert read == sorted(read)
    assert read[-1] == total
    assert any(0 < each < total for each in read)
    assert [page.progress for page in reader.pages if not is_of_checkpoint(page)] == [None]


@pytest.mark.law("R3")
def test_interrupted_snapshot_resumes_from_its_own_checkpoint() -> None:
    gateway = built()
    reader = Reader(gateway, deltas_max=2)
    page = reader.ask(Pull("r", 0, 2, snapshot=SNAPSHOT))
    first = gateway.latest()
    gateway.push(insert("r99", at=at_ms(70), n=99))
    gateway.flushed()
    gateway.build()
    assert gateway.latest().id > first.id

    while page.has_more:
        page = reader.ask(reader.after(page))

    assert reader.bytes() == gateway.rows()
    assert {at.of for page in reader.pages for at in [token(page)] if at and at.table} == {first.id}


def token(page: PullPage) -> ResumeToken | None:
    return resume_token_of(page.snapshot) if page.snapshot else None


def is_of_checkpoint(page: PullPage) -> bool:
    at = token(page)
    return at is not None and at.of != ""


def middle(gateway: Kept) -> PullPage:
    page = gateway.reader.pull(GATEWAY, Pull("r", 0, 4, snapshot=SNAPSHOT))
    assert is_of_checkpoint(page)
    return page


@pytest.mark.law("R3")
def test_snapshot_of_a_removed_checkpoint_expires_and_can_begin_again() -> None:
    gateway = built()
    page = middle(gateway)
    for key in list(gateway.objects.bodies):
        gateway.objects.delete_object(key)
    for fresh in (gateway.checkpoints, Checkpoints(gateway.objects)):
        gateway.reader = gateway.reads(fresh)
        error = refused(gateway, Pull("r", 0, 4, snapshot=page.snapshot))
        assert isinstance(error, CursorExpired)
    assert Reader(gateway).read() == gateway.rows()


@pytest.mark.law("R3")
@pytest.mark.parametrize("late", ["trim", "restore"])
def test_checkpoint_older_than_a_trim_or_restore_is_not_served(late: str) -> None:
    gateway = built()
    page = middle(gateway)
    gateway.push(insert("r99", at=at_ms(70), n=99))
    gateway.flushed()
    if late == "trim":
        gateway.trim()
    else:
        begin_epoch(gateway.buffer, GATEWAY, wall_clock=gateway.time.wall_clock)

    error = refused(gateway, Pull("r", 0, 4, snapshot=page.snapshot))
    assert isinstance(error, CursorExpired)
    reader = Reader(gateway)
    assert reader.read() == gateway.rows()
    assert not any(map(is_of_checkpoint, reader.pages))


def test_snapshot_expires_when_its_gateway_stops_keeping_checkpoints() -> None:
    gateway = built()
    page = middle(gateway)
    gateway.reader = gateway.reads(None)

    assert isinstance(refused(gateway, Pull("r", snapshot=page.snapshot)), CursorExpired)


ID = "0" * 16 + "-" + "0" * 16


@pytest.mark.parametrize(
    "of", ["=", "x", ID[:-1], ID + "0", ID.upper().replace("0", "G"), f"../{ID}", f"{ID}/"]
)
def test_resume_token_with_an_invalid_checkpoint_is_refused(of: str) -> None:
    gateway = built()
    since = f"{gateway.latest().since:x}"

    error = refused(gateway, Pull("r", snapshot=f"{since}|all|{of}||todos|"))

    assert isinstance(error, ValidationFailed)
    assert error.field == "snapshot"


@pytest.mark.parametrize(
    ("table", "position"),
    [
        ("todos", "99:0"), ("nothing", ""), ("todos", "0:4"), ("todos", "999999999:0"),
        ("todos", "0"), ("todos", "0:x"), ("todos", "-1:0"), ("todos", "0:0:0"), ("todos", "0:0 "),
        ("todos", "99999999999:0"),
    ],
)  # fmt: skip
def test_resume_token_with_an_unknown_part_is_refused(table: str, position: str) -> None:
    gateway = built()
    manifest = gateway.latest()

    text = f"{manifest.since:x}|all|{manifest.id}|{manifest.epoch}|{table}|{position}"
    error = refused(gateway, Pull("r", snapshot=text))

    assert isinstance(error, ValidationFailed)


# --- events


@pytest.mark.law("R1")
def test_snapshot_from_a_checkpoint_takes_events_from_the_untrimmed_log() -> None:
    gateway = Kept()
    body = {"table": "events", "columns": [{"name": "n", "type": "integer"}], "append": True}
    gateway.admin.register_schema(GATEWAY, body)
    for number in range(4):
        gateway.push(insert(f"e{number}", at=at_ms(number), table="events", n=number))
        gateway.push(insert(f"r{number}", at=at_ms(number), n=number))
        gateway.flushed()
        if number == 1:
            gateway.trim()
    gateway.build()
    reader = Reader(gateway, deltas_max=1)

    reader.read()

    assert {key for key in reader.states if key[0] == "events"} == {
        ("events", "e2"), ("events", "e3"),
    }  # fmt: skip
    assert {key for key in reader.states if key[0] == "todos"} == set(gateway.rows())
    assert any(map(is_of_checkpoint, reader.pages))


# --- rules


def owner_of(page: PullPage) -> set[bytes]:
    return {value for run in page.records for delta in decode_records(run)
            for name, value in delta.columns if name == "owner"}  # fmt: skip


@pytest.mark.law("R3", "V7")
@pytest.mark.parametrize("removes", [True, False])
@pytest.mark.parametrize("deltas_max", [1, 3, 100])
def test_rows_of_a_checkpoint_are_filtered_by_rules_and_claims(
    deltas_max: int, *, removes: bool
) -> None:
    gateway = built(ruled=True)
    reader = Reader(gateway, claims={"sub": "bob"}, removes=removes, deltas_max=deltas_max)

    reader.read()

    assert {key[1] for key in reader.states} == {f"r{number}" for number in range(1, 12, 2)}
    assert view(reader.states["todos", "r3"]) == {"owner": b'"bob"', "n": b"33"}
    assert {owner for page in reader.pages for owner in owner_of(page)} == {b'"bob"'}
    assert {key: state for key, state in gateway.rows().items()
            if key in reader.states} == reader.bytes()  # fmt: skip


@pytest.mark.law("R3", "V4")
@pytest.mark.parametrize("deltas_max", [1, 100])
def test_pages_of_a_checkpoint_do_not_name_tables_that_rules_hide(
    deltas_max: int,
) -> None:
    gateway = Kept(chunk_bytes=1_500)
    rules(gateway, MINE)
    for number, table in enumerate(["another", "todos", "worse"]):
        gateway.push(insert("r1", at=at_ms(number), table=table, owner="ada", n=number))
    gateway.flushed()
    gateway.build()
    reader = Reader(gateway, claims={"sub": "ada"}, deltas_max=deltas_max)
    reader.read()

    told = [f"{page.snapshot} {page.resync}" for page in reader.pages]
    assert {key[0] for key in reader.states} == {"todos"}
    assert not [text for text in told if "another" in text or "worse" in text]
    shown = [page.progress for page in reader.pages if is_of_checkpoint(page)]
    assert shown[-1] == Progress(100, 100)


@pytest.mark.law("R3")
def test_client_that_sees_no_rows_reads_a_checkpoint_in_few_pages() -> None:
    gateway = Kept()
    rules(gateway, MINE)
    for number in range(120):
        gateway.push(insert(f"r{number:03}", at=at_ms(number), owner="ada", n=number))
    gateway.flushed()
    gateway.build()
    reader = Reader(gateway, claims={"sub": "nobody"})

    assert reader.read() == {}
    assert 1 < len(reader.pages) < 6


@pytest.mark.law("R3", "V4")
def test_checkpoint_older_than_the_rules_is_not_served_to_clients_with_filtered_rows() -> None:
    """Its row may have left sight by an entry that the log cannot decide any more."""
    gateway = built()
    gateway.trim(covered=gateway.latest().since)
    gateway.push(update("r1", at=at_ms(60), owner="ada"))
    page = middle(gateway)
    rules(gateway, MINE)
    bob = {"sub": "bob"}

    error = refused(gateway, Pull("r", 0, 4, snapshot=page.snapshot, claims=bob))
    reader = Reader(gateway, claims=bob)
    reader.read()

    assert isinstance(error, CursorExpired)
    assert ("todos", "r1") not in reader.states
    assert not any(map(is_of_checkpoint, reader.pages))
    gateway.flushed()
    gateway.build()
    again = Reader(gateway, claims=bob)
    again.read()
    assert again.states == reader.states
    assert any(map(is_of_checkpoint, again.pages))


@pytest.mark.law("R3", "V7")
@settings(deadline=None)
@given(
    moves=st.lists(
        st.tuples(st.sampled_from(["r1", "r2", "r3"]), st.sampled_from(OWNERS), st.booleans()),
        max_size=10,
    ),
    build_at=st.integers(0, 10),
    deltas_max=st.sampled_from([1, 100]),
)
def test_snapshot_from_a_checkpoint_ends_with_exactly_the_visible_rows(
    moves: list[tuple[str, str, bool]], build_at: int, deltas_max: int
) -> None:
    gateway = Kept(chunk_bytes=300)
    rules(gateway, MINE)
    gateway.push(insert("r0", at=at_ms(1), owner="bob"))
    for number, (row, owner, is_deleted) in enumerate(moves):
        if number == build_at:
            gateway.flushed()
            gateway.build()
        at = at_ms(10 + number)
        gateway.push(delete(row, at=at) if is_deleted else insert(row, at=at, owner=owner))
    if build_at >= len(moves):
        gateway.flushed()
        gateway.build()
    for removes in (True, False):
        for sub in OWNERS:
            reader = Reader(gateway, claims={"sub": sub}, removes=removes, deltas_max=deltas_max)
            reader.read()
            shown = {key: view(state) for key, state in reader.states.items()}
            assert {key: row for key, row in shown.items() if row is not None} == {
                key: row for key, row in all_rows(gateway).items()
                if row["owner"] == f'"{sub}"'.encode()
            }  # fmt: skip


def all_rows(gateway: Kept) -> dict[Any, dict[str, bytes]]:
    shown = {key: view(decode_row_state(state)) for key, state in gateway.rows().items()}
    return {key: row for key, row in shown.items() if row is not None}
