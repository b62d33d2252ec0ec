"""``functions/flow``: polls flows of databases, and counts what one would move."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from botocore.exceptions import ReadTimeoutError

from lakesync.adapters.memory import MemoryDatabase
from lakesync.connectors.registry import Definition
from lakesync.core.config import GatewayConfig
from lakesync.core.flows import flow_to_stored
from lakesync.declare.flows import read_flow
from lakesync.errors import AdapterUnreachable, SourceUnavailable, ValidationFailed
from lakesync.flows.routes import FlowRoutes
from lakesync.runtime import deliver, invocations, wiring_connectors
from lakesync.runtime.invocations import COUNT_S, asked_by, counted_by, with_counts
from lakesync.testing.database_contract import batch
from tests.delivery.world import KeptDatabase
from tests.functions.conftest import Context, event
from tests.support.builders import insert

if TYPE_CHECKING:
    from tests.functions.conftest import Functions

ACROSS: dict[str, Any] = {
    "name": "across",
    "source": {"database": "postgres", "secret": "shop"},
    "tables": ["orders"],
    "destination": {"database": "bigquery", "secret": "reports"},
}
FLOW = read_flow(ACROSS, GatewayConfig(), "demo")


class Database(MemoryDatabase):
    """A database that notes that it was closed."""

    is_closed = False

    def close(self) -> None:
        """Note it."""
        self.is_closed = True


def no_lakes(_: str) -> tuple[bool, bytes]:
    """Stand for the function that is not to be asked."""
    raise AssertionError


def opening(monkeypatch: pytest.MonkeyPatch, opened: Any) -> None:
    """Have databases opened so."""
    monkeypatch.setattr(wiring_connectors, "database_opener", lambda *_: opened)


@pytest.mark.law("Y10")
def test_a_flow_plan_counts_the_source_rows(
    functions: Functions, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = Database()
    rows = [insert(f"r{number}", table="orders", at=number + 1) for number in range(3)]
    database.insert_deltas(batch("orders", rows)).unwrap()
    asked = []

    def opened(*names: str) -> Database:
        asked.append(names)
        return database

    opening(monkeypatch, opened)
    answer = functions.call("flow", "flow_plan")

    assert answer["tables"] == [{"table": "orders", "rows": 3, "passing": 3, "hasMore": False}]
    assert (asked, database.is_closed) == ([("demo", "shop", "postgres", "demo")], True)


def test_an_unreachable_database_is_the_reason_in_a_flow_plan(
    functions: Functions, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: str) -> Database:
        raise AdapterUnreachable("shop cannot be reached")

    opening(monkeypatch, away)
    handler = functions.load("flow")
    assert handler(event("flow_plan"), Context()) == {"reason": "shop cannot be reached"}
    counts = counted_by(
        lambda sent: (True, json.dumps(handler(json.loads(sent), None)).encode()), no_lakes
    )
    with pytest.raises(SourceUnavailable, match="shop cannot be reached"):
        counts("demo", FLOW)


def test_a_flow_plan_without_time_left_omits_counts() -> None:
    database, now = Database(), iter([0.0, 100.0])
    database.insert_deltas(batch("orders", [insert("r", table="orders")])).unwrap()
    handler = with_counts(lambda *_: None, lambda *_: database, lambda: next(now))
    sent = {"gateway": "demo", "name": "across", "plan": flow_to_stored(FLOW)}

    assert handler(sent, None)["tables"] == [{"table": "orders"}]
    assert invocations._BEGINS_S < COUNT_S < 29


@pytest.mark.parametrize("answer", [(False, b""), (True, b"{}")])
def test_a_failed_count_invocation_is_reported_as_source_unavailable(
    answer: tuple[bool, bytes],
) -> None:
    with pytest.raises(SourceUnavailable, match="did not answer"):
        counted_by(lambda _: answer, no_lakes)("demo", FLOW)

    def late(_: str) -> tuple[bool, bytes]:
        raise ReadTimeoutError(endpoint_url="lambda")

    with pytest.raises(SourceUnavailable, match="did not answer"):
        counted_by(late, no_lakes)("demo", FLOW)


def test_rows_of_iceberg_flows_are_counted_by_the_lake_function() -> None:
    body = ACROSS | {"source": {"database": "iceberg", "secret": "lake"}}
    flow = read_flow(body, GatewayConfig(), "demo")
    asked = []

    def lakes(sent: str) -> tuple[bool, bytes]:
        asked.append(json.loads(sent)["plan"]["source"]["database"])
        return True, b'{"tables": []}'

    assert counted_by(no_lakes, lakes)("demo", flow) == {"tables": []}
    assert asked == ["iceberg"]


def test_other_events_of_the_flow_function_are_polls(functions: Functions) -> None:
    answer = functions.call("flow", "flow_poll")
    assert (answer["status"], answer["next"]) == ("gone", "end")


@pytest.mark.parametrize(
    ("body", "place"),
    [
        ({}, "databases"),
        ({"destination": "gateway"}, "databases"),
        ({"source": {"connector": "jira"}}, "databases"),
        ({"source": {"connector": "jira"}, "destination": "gateway"}, "connectors"),
        ({"source": {"connector": "postgres"}, "destination": "gateway"}, "databases"),
        ({"source": {"connector": "mysql"}, "destination": "gateway"}, "databases"),
    ],
)
def test_a_flow_is_polled_by_the_function_that_reaches_both_ends(
    body: dict[str, Any], place: str
) -> None:
    flow = read_flow(ACROSS | body, GatewayConfig(), "demo")
    definition = Definition("flow", flow_to_stored(flow))

    def routes(here: str) -> FlowRoutes:
        return FlowRoutes(None, None, None, None, wall_clock=None, outside=None, place=here)  # type: ignore[arg-type]

    assert routes("").elsewhere(definition) == ""
    for here in ("connectors", "databases"):
        assert routes(here).elsewhere(definition) == ("" if here == place else place)


@pytest.mark.law("Y9")
def test_the_flow_function_has_one_secrets_store(
    functions: Functions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A changed one is in force at once: so both read secrets by one store."""
    made, real = [], wiring_connectors.secrets

    def secrets(*words: Any) -> Any:
        made.append(real(*words))
        return made[-1]

    monkeypatch.setattr(wiring_connectors, "secrets", secrets)
    functions.load("flow")
    assert len(made) == 1


def test_a_database_is_checked_by_the_function_that_will_use_it(
    functions: Functions, monkeypatch: pytest.MonkeyPatch
) -> None:
    question = {"gateway": "demo", "ask": {"kind": "postgres", "secret": "shop"}}
    database, asked = KeptDatabase(), []

    def opened(*names: str) -> KeptDatabase:
        asked.append(names)
        return database

    opening(monkeypatch, opened)
    monkeypatch.setattr(deliver, "database_opener", lambda *_, **__: opened)
    for name in ("flow", "deliver"):
        handler = functions.load(name)
        database.is_away = False
        assert handler(question, Context()) == {"answers": True}
        database.is_away = True
        assert handler(question, Context()) == {"reason": "it cannot be reached"}
        asks = asked_by(
            lambda sent, handler=handler: (True, json.dumps(handler(json.loads(sent), 0)).encode()),  # type: ignore[misc]
            no_lakes,
        )
        with pytest.raises(ValidationFailed, match="secret shop cannot be used: it cannot be rea"):
            asks("demo", "postgres", "shop")
    assert set(asked) == {("demo", "shop", "postgres", "demo")}


@pytest.mark.parametrize("answer", [(False, b""), (True, b"{}")])
def test_a_failed_database_check_invocation_is_reported_as_not_answering(
    answer: tuple[bool, bytes],
) -> None:
    with pytest.raises(ValidationFailed, match="did not answer in time"):
        asked_by(no_lakes, lambda _: answer)("demo", "iceberg", "lake")

    def late(_: str) -> tuple[bool, bytes]:
        raise ReadTimeoutError(endpoint_url="lambda")

    with pytest.raises(ValidationFailed, match="did not answer in time"):
        asked_by(late, no_lakes)("demo", "postgres", "shop")
