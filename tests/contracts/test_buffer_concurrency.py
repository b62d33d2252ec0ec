"""Many writers and readers at once, on each implementation: the real services in real threads."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from lakesync.core.clock import STAMP_MAX
from lakesync.core.delta import Op, make_delta
from lakesync.core.messages import Pull
from lakesync.errors import Unavailable
from lakesync.log.lanes import Limits, close_lanes
from lakesync.wire.records import decode_row_state
from tests.support.builders import at_ms, push, update
from tests.support.gateways import administrator, deltas_of, pulled, puller, pusher
from tests.support.oracle import expected_row
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from lakesync.core.delta import Delta
    from lakesync.core.merge import RowState
    from lakesync.ports import Buffer

WRITERS = 16
READERS = 3
PUSHES = {"memory": 15, "model": 6, "dynamodb_local": 3}
"""Of each writer; a transaction takes DynamoDB Local ten times as long as the others."""
PATIENT = Limits(commit_deadline_ms=60_000)


def edits(writer: int, number: int) -> list[Delta]:
    """Return one push: a row of its own, and a row that all writers fight for."""
    stamp = at_ms(writer * 1_000 + number)
    client = f"w{writer}"
    return [
        update(f"own-{writer}-{number}", at=stamp, client=client, n=number),
        make_delta(
            Op.UPDATE,
            "todos",
            f"shared-{number % 3}",
            {f"c{writer % 4}": number},
            client_id=client,
            hlc=stamp + 1,
        ),
    ]


class Crowd:
    """Writers that push, and readers that page after them until the writers are done."""

    def __init__(self, buffer: Buffer, gateway: str, pushes: int) -> None:
        self.buffer, self.gateway, self.pushes = buffer, gateway, pushes
        self.written = threading.Event()
        self.read: list[list[Delta]] = []

    def run(self) -> None:
        """Let all of them work."""
        with ThreadPoolExecutor(WRITERS + READERS) as pool:
            reading = [pool.submit(self.reader, 1 + 4 * number) for number in range(READERS)]
            writing = [pool.submit(self.writer, number) for number in range(WRITERS)]
            try:
                for done in writing:
                    done.result(120)
            finally:
                self.written.set()
            self.read = [done.result(120) for done in reading]

    def writer(self, number: int) -> None:
        """Push, each time the same until it is accepted."""
        service = pusher(self.buffer, seed=number, limits=PATIENT)
        for place in range(self.pushes):
            deltas = edits(number, place)
            receipt = service.push(self.gateway, push(*deltas, client=f"w{number}"))
            assert receipt.accepted == len(deltas)

    def reader(self, deltas_max: int) -> list[Delta]:
        """Page from the beginning to where the writers ended."""
        service = puller(self.buffer)
        deltas: list[Delta] = []
        cursor = 0
        while True:
            last_round = self.written.is_set()
            at_least = STAMP_MAX if last_round else 0
            with suppress(Unavailable):
                page = service.pull(
                    self.gateway,
                    Pull("r", since=cursor, deltas_max=deltas_max, at_least=at_least),
                )
                deltas += deltas_of(page)
                assert page.cursor >= cursor
                cursor = page.cursor
                if last_round and not page.has_more:
                    return deltas


def rows_of(buffer: Buffer, gateway: str, deltas: list[Delta]) -> dict[str, RowState]:
    """Return the rows' states as the buffer holds them."""
    rows = buffer.rows(gateway, {(delta.table, delta.row_id) for delta in deltas})
    return {key[1]: decode_row_state(row.state) for key, row in rows.items()}


@pytest.mark.law("B2")
@pytest.mark.law("B8")
@pytest.mark.parametrize("lanes", [1, 8])
def test_concurrent_pushes_lose_and_duplicate_no_commit_for_any_cursor(
    buffer: Buffer, gateway: str, store: str, lanes: int
) -> None:
    """Writers open lanes as they lose races, or find some open that nobody writes to."""
    if lanes > 1:
        administrator(buffer).place_table(gateway, "todos", "hot")
        main = buffer.heads(gateway)["main"]
        assert buffer.change_lanes(gateway, main, main.lanes.opening("hot", lanes), main.commit + 1)
    crowd = Crowd(buffer, gateway, PUSHES[store])

    crowd.run()

    pushed = [d for w in range(WRITERS) for n in range(crowd.pushes) for d in edits(w, n)]
    logged = pulled(buffer, gateway)
    effective = Counter(delta.delta_id for delta in logged)
    assert max(effective.values()) == 1
    assert {d.delta_id for d in pushed if d.row_id.startswith("own")} <= effective.keys()
    for read in crowd.read:
        assert Counter(delta.delta_id for delta in read) == effective
    states = rows_of(buffer, gateway, pushed)
    assert len(buffer.heads(gateway)["main"].lanes.used()) > 1  # declaring a table closes them
    for row_id, state in states.items():
        visible = {name: register[2] for name, register in state.columns.items()}
        assert visible == expected_row([d for d in pushed if d.row_id == row_id])
    assert len(states) == len({d.row_id for d in pushed})


@pytest.mark.law("B6")
def test_concurrent_pushes_are_pulled_exactly_once_while_a_table_changes_its_shard(
    buffer: Buffer, gateway: str, store: str
) -> None:
    crowd = Crowd(buffer, gateway, PUSHES[store])
    shards = ["hot", "warm", "hot"]

    def place() -> None:
        service = administrator(buffer)
        for shard in shards:
            service.place_table(gateway, "todos", shard)

    mover = threading.Thread(target=place)
    mover.start()
    crowd.run()
    mover.join(PATIENCE_S)

    config = buffer.config(gateway)
    assert config.layout.moves == len(shards)
    # Every name is declared once: the table with its first push, and each of its columns.
    assert len(shards) < config.version <= len(shards) + len(config.tables["todos"])
    effective = Counter(delta.delta_id for delta in pulled(buffer, gateway))
    assert max(effective.values()) == 1
    for read in crowd.read:
        assert Counter(delta.delta_id for delta in read) == effective
    pushed = [d for w in range(WRITERS) for n in range(crowd.pushes) for d in edits(w, n)]
    assert {d.delta_id for d in pushed if d.row_id.startswith("own")} <= effective.keys()


@pytest.mark.law("B7")
def test_concurrent_pushes_are_pulled_exactly_once_while_lanes_are_closed(
    buffer: Buffer, gateway: str, store: str
) -> None:
    crowd = Crowd(buffer, gateway, PUSHES[store])
    done = threading.Event()
    closed: list[bool] = []

    def close() -> None:
        while not done.wait(0.05):
            with suppress(Unavailable):
                heads = buffer.heads(gateway, STAMP_MAX)
                if heads:
                    closed.append(close_lanes(buffer, gateway, heads, {"main": 1}))

    closer = threading.Thread(target=close)
    closer.start()
    try:
        crowd.run()
    finally:
        done.set()
        closer.join(PATIENCE_S)

    assert closed
    effective = Counter(delta.delta_id for delta in pulled(buffer, gateway))
    assert max(effective.values()) == 1
    for read in crowd.read:
        assert Counter(delta.delta_id for delta in read) == effective
    pushed = [d for w in range(WRITERS) for n in range(crowd.pushes) for d in edits(w, n)]
    assert {d.delta_id for d in pushed if d.row_id.startswith("own")} <= effective.keys()
    main = buffer.heads(gateway)["main"]
    for lane, head in buffer.all_heads(gateway).items():
        assert head.is_closed or main.lanes.is_open(lane)
