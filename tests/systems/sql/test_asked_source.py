"""A source that is a database is asked by the function in its subnets, not by who registers it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from botocore.exceptions import ReadTimeoutError

from lakesync.adapters.lake.memory import MemoryAdapter
from lakesync.adapters.network import NO_ANSWER
from lakesync.buffer.memory_buffer import MemoryBuffer
from lakesync.connectors.port import Outside, SourceColumn, SourceTable
from lakesync.connectors.registry import Definition, configured, connector_type
from lakesync.declare.flows import read_connector
from lakesync.errors import AdapterUnreachable, LakeSyncError, ValidationFailed
from lakesync.result import Err, Ok, Result
from lakesync.runtime.invocations import sources_asked_by, with_source_questions
from lakesync.systems.postgres import postgres_capture, postgres_source
from lakesync.systems.sql.asked_source import answered
from tests.support.gateways import GivenTime, pusher
from tests.support.polling import PollingByHand

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lakesync.connectors.port import Storage

G = "g"
AWAY = NO_ANSWER
TABLE = {"name": "app.orders", "as": "orders", "key": ["id"], "columns": ["id", "n"]}
SETTINGS: dict[str, Any] = {
    "host": "10.0.7.3",
    "database": "shop",
    "user": "reader",
    "password": "hush",
    "tables": [TABLE],
}
ORDERS = SourceTable(
    "app.orders",
    (SourceColumn("id", "integer", nullable=False), SourceColumn("n", "number")),
    ("id",),
)


class InSubnets:
    """The function that reaches databases, with a source that does as it is told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.says: Result[str, LakeSyncError] = Ok("PostgreSQL 17 answers.")
        self.asked: list[Any] = []
        self.sent: list[str] = []
        self.closed = 0
        self.objects = MemoryAdapter()
        monkeypatch.setattr(postgres_source, "SqlConnector", self.made)
        monkeypatch.setattr(postgres_capture, "forget", self.forgotten)

    def made(self, database: Any, settings: Any, storage: Storage) -> InSubnets:
        """Make the source."""
        self.asked.append((database.hosts, settings, storage.is_scratch))
        return self

    def check(self) -> Result[str, LakeSyncError]:
        """Answer as told."""
        return self.says

    def discover(self) -> Result[tuple[SourceTable, ...], LakeSyncError]:
        """List a table."""
        return Ok((ORDERS,))

    def close(self) -> None:
        """Note it."""
        self.closed += 1

    def forgotten(self, settings: Any, storage: Storage, following: Any, hosts: Any) -> str:
        """Note what is to be removed."""
        self.asked.append((settings, following, hosts))
        storage.clear()
        return "Its slot remains."

    def invoke(self, request: str) -> tuple[bool, bytes]:
        """Answer as Lambda does: JSON in, JSON out."""
        self.sent.append(request)
        handler = with_source_questions(
            lambda *_: pytest.fail("it polls"), self.objects, Outside(databases=("10.0.0.0/16",))
        )
        return True, json.dumps(handler(json.loads(request), None)).encode()


class World:
    """An administration that is in no subnet."""

    def __init__(self, invoke: Callable[[str], tuple[bool, bytes]]) -> None:
        self.time = GivenTime(1_800_000_000_000)
        service = pusher(MemoryBuffer(), time_=self.time)
        self.by_hand = PollingByHand(
            service.push, self.time.wall_clock, outside=Outside(asks=sources_asked_by(invoke))
        )
        self.admin = self.by_hand.admin

    def registration(self, **more: Any) -> Any:
        """Return a registration of the source."""
        body = {"type": "postgres", "name": "shop", "configuration": {**SETTINGS, **more}}
        return read_connector(body)


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> InSubnets:
    return InSubnets(monkeypatch)


@pytest.fixture
def world(there: InSubnets) -> World:
    return World(there.invoke)


@pytest.mark.law("N8")
def test_database_source_is_checked_in_its_subnets_at_registration(
    world: World, there: InSubnets
) -> None:
    assert world.admin.register(G, world.registration()) == "PostgreSQL 17 answers."
    assert world.admin.check(G, "shop") == "PostgreSQL 17 answers."
    (hosts, settings, is_scratch), again = there.asked
    assert (hosts, is_scratch) == (("10.0.0.0/16",), False)
    assert settings == configured(connector_type("postgres"), SETTINGS)
    assert settings.password.get_secret_value() == "hush"
    assert again[1] == settings, "a registered one with its stored secret"
    assert there.closed == 2


@pytest.mark.law("N8")
def test_settings_of_a_database_source_are_tested_in_its_subnets_and_leave_nothing(
    world: World, there: InSubnets
) -> None:
    answer = world.admin.test(G, world.registration(), with_schemas=True)

    assert (answer["message"], answer["tables"]) == ("PostgreSQL 17 answers.", ["orders"])
    assert "orders" in json.dumps(answer["schemas"])
    assert '"number"' in json.dumps(answer["schemas"])
    assert [is_scratch for *_, is_scratch in there.asked] == [True, True]
    assert there.objects.list_objects("") == []


@pytest.mark.law("N8")
def test_refusal_by_the_function_in_the_subnets_fails_the_registration_with_its_message(
    world: World, there: InSubnets
) -> None:
    there.says = Err(AdapterUnreachable("10.0.7.3 is no address of DatabaseHosts"))
    with pytest.raises(ValidationFailed) as caught:
        world.admin.register(G, world.registration())
    assert caught.value.message == (
        "the source cannot be read: 10.0.7.3 is no address of DatabaseHosts"
    )
    assert world.admin.all(G) == []


def late(_: str) -> tuple[bool, bytes]:
    """Take too long."""
    raise ReadTimeoutError(endpoint_url="lambda")


@pytest.mark.parametrize("invoke", [late, lambda _: (False, b'{"errorMessage": "killed"}')])
def test_function_that_does_not_answer_is_reported_in_a_sentence(
    world: World, invoke: Callable[[str], tuple[bool, bytes]]
) -> None:
    away = World(invoke)
    with pytest.raises(ValidationFailed, match=f"the source cannot be read: {AWAY}"):
        away.admin.register(G, away.registration())
    unasked = read_connector(
        {"type": "postgres", "name": "shop", "configuration": SETTINGS, "check": False}
    )
    away.admin.register(G, unasked)
    with pytest.raises(ValidationFailed, match="may remain: the function that reaches databases"):
        away.admin.reset(G, "shop")
    away.time.now_ms += 60_000
    assert AWAY in away.admin.remove(G, "shop"), "and it is removed"
    assert away.admin.all(G) == []
    assert world.admin.all(G) == []


def test_connector_slot_is_removed_in_the_subnets_of_the_source(
    world: World, there: InSubnets
) -> None:
    world.admin.register(G, world.registration())
    assert world.admin.configure(G, "shop", SETTINGS | {"user": "other"}) == (
        "PostgreSQL 17 answers. Its slot remains."
    )
    before, after, hosts = there.asked[-1]
    assert (before.user, after.user, hosts) == ("reader", "other", ("10.0.0.0/16",))
    assert world.admin.remove(G, "shop") == "Its slot remains."
    assert there.asked[-1][1] is None


def test_failing_source_check_answers_its_reason_and_other_source_types_are_refused(
    there: InSubnets,
) -> None:
    def ask(**more: Any) -> Mapping[str, Any]:
        question = {"type": "postgres", "gateway": G, "name": "shop", "isScratch": True}
        return answered(
            {**question, "configuration": SETTINGS, "does": "check", **more},
            there.objects,
            Outside(),
        )

    assert ask()["sentence"] == "PostgreSQL 17 answers."
    assert ask(configuration={})["refused"]["field"] == "configuration.tables"
    assert "not databases" in ask(type="jira")["refused"]["message"]
    assert there.closed == 1


@pytest.mark.parametrize(
    ("kind", "place"), [("postgres", "databases"), ("mysql", "databases"), ("jira", "connectors")]
)
def test_connector_is_polled_by_the_function_that_reaches_its_source(
    world: World, kind: str, place: str
) -> None:
    for here in ("connectors", "databases", "lakes"):
        elsewhere = world.by_hand.flow_routes(here).elsewhere(Definition(kind, {}))
        assert elsewhere == ("" if here == place else place)
    assert world.by_hand.flow_routes("").elsewhere(Definition(kind, {})) == ""


def test_poll_begun_by_the_wrong_function_reads_nothing_and_names_the_right_one(
    world: World, there: InSubnets
) -> None:
    world.admin.register(G, world.registration())
    step = world.by_hand.polls_at("connectors").poll(G, "shop", 0, lambda: True)
    assert (step.status, step.place, len(there.asked)) == ("elsewhere", "databases", 1)
