"""What a push and a pull cost: round trips, and units by the rule and by ``ConsumedCapacity``."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from benchmarks.units import batch_read_units, transaction_units
from lakesync.buffer.caller import Network
from lakesync.core.clock import STAMP_MAX
from lakesync.core.delta import Op, make_delta
from lakesync.core.layout import SHARDS_MAX
from lakesync.core.messages import Pull
from tests.support.builders import WALL_MS, at_ms, insert, push, update
from tests.support.gateways import GivenTime, administrator, puller, pusher

if TYPE_CHECKING:
    from lakesync.core.delta import Delta
    from lakesync.core.messages import Push
    from tests.support.stores import Address

pytestmark = pytest.mark.emulator

EVENTS = {"table": "events", "append": True, "columns": [{"name": "n", "type": "integer"}]}


@pytest.fixture
def address(emulated_dynamodb: Address, credentials: None) -> Address:
    return emulated_dynamodb


class Meter:
    """Counts calls, the units that the emulator reports, and the units by the rule."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._network = Network(address.endpoint)
        self.calls: Counter[str] = Counter()
        self.written: list[tuple[float, float]] = []
        """Of each transaction, the units reported and the units by the rule."""
        self.read = self.read_reported = 0.0
        self._last = 0.0
        self.buffer = address.buffer(send=self.send, on_capacity=self.consumed)

    def send(self, headers: dict[str, str], body: bytes) -> tuple[int, bytes]:
        """Post, and count."""
        operation = headers["X-Amz-Target"].partition(".")[2]
        self.calls[operation] += 1
        status, answer = self._network(headers, body)
        if operation == "TransactWriteItems":
            self._last = transaction_units(body)
        if operation == "BatchGetItem":
            self.read += batch_read_units(body, answer)
        return status, answer

    def consumed(self, operation: str, units: float) -> None:
        """Count what the emulator reports."""
        if operation == "TransactWriteItems":
            self.written.append((units, self._last))

        else:
            self.read_reported += units

    def restart(self) -> None:
        """Count from here."""
        self.calls.clear()
        self.written.clear()
        self.read = self.read_reported = 0.0


@pytest.fixture
def meter(address: Address) -> Meter:
    return Meter(address)


def batch(number: int, *, table: str = "todos") -> Push:
    """Return 100 deltas of 5 columns to 98 rows."""
    op = Op.INSERT if table == "events" else Op.UPDATE

    def delta(index: int) -> Delta:
        columns = {"n": number} | {f"c{place}": f"v{number}{index}" for place in range(4)}
        kept = {"n": number} if table == "events" else columns
        stamp = at_ms(number * 100 + index)
        return make_delta(op, table, f"r{index % 98}", kept, client_id="c1", hlc=stamp)

    return push(*map(delta, range(100)))


def test_a_warm_push_is_one_round_trip_of_at_most_two_and_a_half_units_a_delta(
    meter: Meter, gateway: str
) -> None:
    service = pusher(meter.buffer, time_=GivenTime(WALL_MS + 60_000))
    service.push(gateway, batch(0))
    meter.restart()

    service.push(gateway, batch(1))

    assert meter.calls == {"TransactWriteItems": 1}
    ((reported, by_rule),) = meter.written
    assert reported == by_rule <= 250


def test_a_configuration_is_read_and_parsed_once_while_it_is_in_force(
    meter: Meter, gateway: str
) -> None:
    admin = administrator(meter.buffer, time_=GivenTime(WALL_MS))
    admin.register_schema(gateway, EVENTS)
    first = meter.buffer.config(gateway)
    meter.restart()

    assert meter.buffer.config(gateway) is first
    assert meter.calls == {"GetItem": 1}  # a head

    other = Meter(meter.address)
    administrator(other.buffer, time_=GivenTime(WALL_MS)).set_strict(gateway, strict=True)
    assert meter.buffer.config(gateway).strict


def test_cold_push_reads_one_unit_per_delta_in_three_round_trips(
    meter: Meter, gateway: str
) -> None:
    pusher(meter.buffer, time_=GivenTime(WALL_MS + 60_000)).push(gateway, batch(0))
    cold = Meter(meter.address)

    service = pusher(cold.buffer, time_=GivenTime(WALL_MS + 60_000))
    service.push(gateway, batch(1))

    assert cold.calls == {"GetItem": 2, "BatchGetItem": 1, "TransactWriteItems": 1}
    assert cold.read == 98, "a unit a row, beside the two that are got by themselves"


def test_push_on_rows_changed_by_another_writer_takes_two_transactions(
    meter: Meter, gateway: str
) -> None:
    time = GivenTime(WALL_MS + 60_000)
    mine, theirs = pusher(meter.buffer, time_=time), pusher(meter.buffer, seed=1, time_=time)
    mine.push(gateway, batch(0))
    theirs.push(gateway, batch(1))  # it takes the main lane's head from the other
    mine.push(gateway, push(insert("elsewhere", at=at_ms(150), n=1)))  # and loses it here
    theirs.push(gateway, batch(2))
    mine.push(gateway, batch(3))
    theirs.push(gateway, batch(4))
    meter.restart()

    mine.push(gateway, batch(5))

    assert meter.calls == {"TransactWriteItems": 2}


def test_small_push_writes_two_items_unless_entries_move_into_the_log(
    meter: Meter, gateway: str
) -> None:
    service = pusher(meter.buffer, time_=GivenTime(WALL_MS + 60_000))
    service.push(gateway, push(insert(at=at_ms(0), n=0)))
    meter.restart()

    for number in range(1, 31):
        service.push(gateway, push(update(at=at_ms(number), n=number)))

    assert meter.calls == {"TransactWriteItems": 30}
    units = [reported for reported, _ in meter.written]
    assert meter.written == [(by_rule, by_rule) for _, by_rule in meter.written]
    assert set(units) == {4, 6}  # the head and the row; and now and then the entries
    assert units.count(6) <= 5


@pytest.mark.law("B18")
@pytest.mark.parametrize("server", ["emulated_dynamodb", "dynamodb_local"])
def test_heads_of_forty_shards_are_read_for_two_units(
    request: pytest.FixtureRequest, credentials: None, gateway: str, server: str
) -> None:
    meter = Meter(request.getfixturevalue(server))
    time = GivenTime(WALL_MS)
    admin, service = administrator(meter.buffer, time_=time), pusher(meter.buffer, time_=time)
    tables = [f"t{number}" for number in range(SHARDS_MAX)]
    for number, table in enumerate(tables[1:], 1):
        admin.place_table(gateway, table, f"s{number}")
    for number, table in enumerate(3 * tables):
        time.now_ms += 1
        row = push(insert(at=at_ms(number), table=table, text="t" * 100))
        service.push(gateway, replace(row, trusted=True))  # a user may not have forty tables
    time.now_ms += 1_000
    reader = puller(meter.buffer, time_=time)
    page = reader.pull(gateway, Pull("r", 0, 1_000, at_least=STAMP_MAX))
    assert page.count == 3 * SHARDS_MAX
    meter.restart()

    assert reader.pull(gateway, Pull("r", page.cursor, 1_000)).count == 0
    assert meter.calls == {"GetItem": 1, "Query": 1}
    assert meter.read_reported == 2


def test_a_repeated_push_writes_nothing(meter: Meter, gateway: str) -> None:
    time = GivenTime(WALL_MS + 1_000)
    service = pusher(meter.buffer, time_=time)
    service.push(gateway, batch(0))
    meter.restart()

    assert service.push(gateway, batch(0)).accepted == 100
    assert meter.calls == {}
    time.now_ms += 60_000  # what is old is held against the rows as they are
    assert service.push(gateway, batch(0)).accepted == 100
    assert meter.calls == {"GetItem": 1, "BatchGetItem": 1}


def test_event_push_costs_at_most_three_tenths_of_a_unit_per_delta(
    meter: Meter, gateway: str
) -> None:
    administrator(meter.buffer, time_=GivenTime(WALL_MS)).register_schema(gateway, EVENTS)
    service = pusher(meter.buffer, time_=GivenTime(WALL_MS + 60_000))
    service.push(gateway, batch(0, table="events"))
    meter.restart()

    service.push(gateway, batch(1, table="events"))

    assert meter.calls == {"TransactWriteItems": 1}
    ((reported, by_rule),) = meter.written
    assert reported == by_rule <= 30


@pytest.mark.parametrize("deltas_max", [100, 1_000])
def test_page_of_large_commits_takes_two_round_trips_and_its_repetition_one(
    meter: Meter, gateway: str, deltas_max: int
) -> None:
    service = pusher(meter.buffer, time_=GivenTime(WALL_MS + 60_000))
    receipts = [service.push(gateway, batch(number)) for number in range(4)]
    reader = puller(meter.buffer)
    reader.pull(gateway, Pull("r", since=receipts[-1].server_hlc))
    meter.restart()

    first = reader.pull(gateway, Pull("r", deltas_max=deltas_max))

    assert meter.calls == {"GetItem": 1, "Query": 1}
    meter.restart()

    assert reader.pull(gateway, Pull("r", deltas_max=deltas_max)) == first
    assert meter.calls == {"GetItem": 1}  # the log itself from memory


def test_pull_without_new_deltas_is_one_round_trip(meter: Meter, gateway: str) -> None:
    service = pusher(meter.buffer, time_=GivenTime(WALL_MS + 60_000))
    service.push(gateway, push(insert(at=at_ms(1), n=1)))
    reader = puller(meter.buffer)
    page = reader.pull(gateway, Pull("r"))
    meter.restart()

    assert reader.pull(gateway, Pull("r", since=page.cursor)).count == 0
    assert meter.calls == {"GetItem": 1}


def test_pull_without_new_deltas_from_several_lanes_is_two_round_trips(
    meter: Meter, gateway: str
) -> None:
    service = pusher(meter.buffer, time_=GivenTime(WALL_MS + 60_000))
    service.push(gateway, push(insert(at=at_ms(1), n=1)))
    main = meter.buffer.heads(gateway)["main"]
    lanes = main.lanes.opening("main", 8)
    assert meter.buffer.change_lanes(gateway, main, lanes, main.commit + 1)
    reader = puller(meter.buffer)
    page = reader.pull(gateway, Pull("r", at_least=STAMP_MAX))
    meter.restart()

    assert reader.pull(gateway, Pull("r", since=page.cursor)).count == 0
    assert meter.calls == {"GetItem": 1, "Query": 1}


def test_dynamodb_local_reports_the_read_units_of_our_rule(
    dynamodb_local: Address, credentials: None, gateway: str
) -> None:
    address = dynamodb_local
    reported: Counter[str] = Counter()
    by_rule = []
    network = Network(address.endpoint)

    def send(headers: dict[str, str], body: bytes) -> tuple[int, bytes]:
        status, answer = network(headers, body)
        if headers["X-Amz-Target"].endswith("BatchGetItem"):
            by_rule.append(batch_read_units(body, answer))
        return status, answer

    def consumed(operation: str, units: float) -> None:
        reported[operation] += int(units)

    buffer = address.buffer(send=send, on_capacity=consumed)
    large = insert("large", at=at_ms(1), text="x" * 9_000)
    small = insert("small", at=at_ms(2), text="x")
    pusher(buffer, time_=GivenTime(WALL_MS)).push(gateway, push(large, small))
    by_rule.clear()
    reported.clear()

    buffer.rows(gateway, [("todos", "large"), ("todos", "small")])

    assert by_rule == [4.0]
    assert reported["BatchGetItem"] == 4
