"""Stripe: lists at first, then its events, each change once and in its order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from lakesync.connectors import Outside, Storage
from lakesync.connectors.registry import configured, described, secret_names, tables_of
from lakesync.core.column_types import TYPES
from lakesync.errors import AdapterQuotaExceeded, ValidationFailed
from lakesync.result import Err, Ok
from lakesync.systems.stripe import STRIPE, TABLES
from lakesync.testing.connector_contract import ConnectorContract, Reader
from tests.support.lake import Killed, Objects
from tests.support.vendors.server import Reply
from tests.support.vendors.stripe import KEY, StripeServer
from tests.support.vendors.world import World

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lakesync.connectors import Connector, SourcePage


def reading(account: StripeServer, *tables: str, key: str = KEY) -> Connector:
    """Return a connector of some tables, closed with its account."""
    account.opened.append(stripe(account, tables=[*tables], apiKey=key))
    return account.opened[-1]


def stripe(account: StripeServer, **more: Any) -> Connector:
    settings = configured(STRIPE, {"apiKey": KEY, "url": account.url, **more})
    return STRIPE.make(settings, Storage(Objects(), "g", "c"), account.outside)


@pytest.fixture
def account() -> Iterator[StripeServer]:
    with StripeServer(stripe) as running:
        yield running


@pytest.mark.law("N1", "N2", "N3")
class TestStripe(ConnectorContract):
    """Stripe, played by a server: one thing a second, and all in one."""

    @pytest.fixture(params=[1, 1_000], ids=["one a second", "many a second"])
    def bench(self, request: pytest.FixtureRequest, account: StripeServer) -> StripeServer:
        account.per_second = request.param
        return account


def test_settings_are_described_and_the_api_key_is_a_secret() -> None:
    assert secret_names(STRIPE) == {"apiKey"}
    assert set(described(STRIPE)["configuration"]["properties"]) == {"apiKey", "tables", "url"}
    with pytest.raises(ValidationFailed, match="tables"):
        configured(STRIPE, {"apiKey": KEY, "tables": ["cards"]})
    settings = configured(STRIPE, {"apiKey": KEY})
    with pytest.raises(ValidationFailed, match="ConnectorHosts"):
        STRIPE.make(settings, Storage(Objects(), "g", "c"), Outside(("*.example.com",)))
    assert tables_of(STRIPE, settings) == {
        table: f"stripe_{table}" for table in ("customers", "products", "invoices")
    }


def test_check_reports_which_tables_the_api_key_may_read(account: StripeServer) -> None:
    said = "customers, subscriptions and their events can be read."
    assert reading(account, "customers", "subscriptions").check() == Ok(said)
    refused = reading(account, "customers", "prices").check()
    assert isinstance(refused, Err)
    assert "/v1/prices" in refused.error.message
    wrong = reading(account, "customers", key="rk_other").check()
    assert isinstance(wrong, Err)
    assert "refuses the credentials" in wrong.error.message


@pytest.mark.law("N1")
def test_cancelled_subscription_keeps_its_row_with_status_canceled(account: StripeServer) -> None:
    """It is among a customer's events, which are no events of the customer."""
    account.put({"c1": "a"})
    account.subscribe("s1", "c1")
    connector = reading(account, "customers", "subscriptions")
    first = {table: page(connector, table) for table in ("customers", "subscriptions")}
    account.cancel("s1")
    account.delete("c1")

    assert rows(first["subscriptions"]) == {"s1": "active"}
    assert rows(page(connector, "subscriptions", first["subscriptions"].cursor)) == {
        "s1": "canceled"
    }
    assert rows(page(connector, "customers", first["customers"].cursor)) == {"c1": None}
    again = page(reading(account, "subscriptions"), "subscriptions")
    assert rows(again) == {"s1": "canceled"}, "it is listed too"


def page(connector: Connector, table: str, cursor: str = "") -> SourcePage:
    return connector.read(table, cursor, rows_max=10, poll_ms=1).unwrap()


def rows(page: SourcePage) -> dict[str, Any]:
    """Return the status of each row of a page; None for what is deleted."""
    return {each.row_id: each.columns and each.columns.get("status") for each in page.changes}


def test_discovered_columns_have_schema_types(account: StripeServer) -> None:
    tables = {each.name: each for each in reading(account, "prices").discover().unwrap()}
    assert tables.keys() == TABLES.keys()
    for table in tables.values():
        assert (table.key, table.columns[0].name) == (("id",), "id")
        assert {column.type for column in table.columns} <= set(TYPES)


@pytest.mark.law("N6")
def test_rate_limited_read_carries_the_retry_after_time(account: StripeServer) -> None:
    account.put({"1": "a"})
    account.faults = [Reply(429, {"error": {"code": "rate_limit"}}, {"retry-after": "7"})]
    read = account.connector().read("customers", "", rows_max=10, poll_ms=1)

    assert isinstance(read, Err)
    assert isinstance(read.error, AdapterQuotaExceeded)
    assert read.error.retry_after_s == 7


@pytest.mark.law("N1")
def test_rows_equal_the_customers_of_stripe_wherever_polls_are_killed(
    account: StripeServer,
) -> None:
    class Vendor:
        storage = Storage(Objects(), "g", "c")

        def connector(self, **_: Any) -> Connector:
            return account.connector()

    world = World(Vendor(), {"customers": "stripe_customers"})
    account.per_second = 5
    account.put({f"{number}": f"first {number}" for number in range(250)})
    for kill in (3, 5, 4):
        world.steps_left = kill
        account.put({"7": f"before {kill}", "new": f"{kill}"})
        account.delete(f"{kill}")
        with pytest.raises(Killed):
            world.poll()
        world.steps_left = 1_000_000
    world.poll_to_the_end()
    world.poll_to_the_end()

    names = {row_id: row["name"] for row_id, row in world.rows("customers").items()}
    assert names == {row_id: each["name"] for row_id, each in account.customers.items()}


def test_account_that_was_empty_at_first_is_read_whole_after_many_events(
    account: StripeServer,
) -> None:
    reader = Reader(account)
    reader.poll()
    expected = {f"{number}": "x" for number in range(130)}
    account.put(expected)
    account.happens("customer.source.created", {"id": "card_1", "object": "card", "created": 1})
    reader.poll(rows_max=100)

    assert reader.rows == expected


@pytest.mark.law("N1", "N3")
def test_reset_after_event_expiry_stamps_rows_later_than_before(
    account: StripeServer,
) -> None:
    account.per_second = 100
    account.put({"1": "a", "2": "b"})
    reader = Reader(account)
    reader.poll()
    account.put({"1": "c"})
    before = [delta.hlc for page in reader.poll() for delta in reader.deltas(page)]
    account.now += 31 * 86_400
    account.put({"1": "d", "2": "e"})
    del account.events[:-1]  # the others are older than 30 days
    read = reader.connector.read("customers", reader.cursors["customers"], rows_max=9, poll_ms=9)
    assert isinstance(read, Err)
    assert "resource_missing" in read.error.message
    reader.cursors["customers"] = ""
    listed = [delta.hlc for page in reader.poll() for delta in reader.deltas(page)]
    account.put({"1": "f"})
    after = [delta.hlc for page in reader.poll() for delta in reader.deltas(page)]

    assert max(before) < min(listed) <= max(listed) < min(after)
    assert reader.rows == {"1": "f", "2": "e"}
