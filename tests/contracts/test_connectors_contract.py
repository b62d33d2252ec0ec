"""What every store of connectors promises: leases are one at a time, saves are of their lease."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from lakesync.buffer.admin_stores import ItemConnectors

if TYPE_CHECKING:
    from lakesync.buffer.items import ItemStore
    from lakesync.ports import ConnectorStore


@pytest.fixture
def connectors(item_store: ItemStore) -> ItemConnectors:
    return ItemConnectors(item_store)


def test_connector_name_is_unique_within_a_gateway(
    connectors: ConnectorStore, gateway: str
) -> None:
    assert connectors.add(gateway, "b", b"first", 1_000)
    assert not connectors.add(gateway, "b", b"second", 2_000)
    assert connectors.add(gateway, "a", b"other", 3_000)
    assert connectors.add(f"{gateway}x", "b", b"of another gateway", 1_000)

    assert [(each.name, each.definition) for each in connectors.connectors(gateway)] == [
        ("a", b"other"), ("b", b"first"),
    ]  # fmt: skip
    connectors.remove(gateway, "b")
    connectors.remove(gateway, "b")
    assert connectors.connector(gateway, "b") is None
    assert connectors.add(gateway, "b", b"again", 4_000)


def test_connector_definition_changes_only_from_the_seen_one(
    connectors: ConnectorStore, gateway: str
) -> None:
    connectors.add(gateway, "c", b"1", 0)

    assert connectors.change(gateway, "c", b"1", b"2")
    assert not connectors.change(gateway, "c", b"1", b"3")
    assert not connectors.change(gateway, "nobody", b"1", b"3")
    stored = connectors.connector(gateway, "c")
    assert stored is not None
    assert stored.definition == b"2"


@pytest.mark.law("N7")
def test_lease_is_exclusive_and_only_its_holder_saves(
    connectors: ConnectorStore, gateway: str
) -> None:
    connectors.add(gateway, "c", b"d", 1_000)
    first = connectors.lease(gateway, "c", 2_000, 5_000)
    assert first is not None
    assert connectors.lease(gateway, "c", 4_999, 9_000) is None
    assert connectors.save(gateway, "c", first.lease, b"one", 5_000)
    second = connectors.lease(gateway, "c", 5_000, 8_000)
    assert second is not None
    assert (second.state, second.definition) == (b"one", b"d")

    assert not connectors.save(gateway, "c", first.lease, b"late", 9_000)
    assert connectors.save(gateway, "c", second.lease, b"two", 0)
    third = connectors.lease(gateway, "c", 5_001, 9_000)
    assert third is not None
    assert third.state == b"two"
    going_on = connectors.lease(gateway, "c", 5_002, 9_500, third.lease)
    assert going_on is not None
    assert not connectors.save(gateway, "c", third.lease, b"before", 0)


@pytest.mark.law("N7")
def test_lease_of_a_removed_connector_is_invalid_for_its_successor(
    connectors: ConnectorStore, gateway: str
) -> None:
    connectors.add(gateway, "c", b"d", 1_000)
    leased = connectors.lease(gateway, "c", 2_000, 5_000)
    assert leased is not None
    connectors.remove(gateway, "c")
    assert not connectors.save(gateway, "c", leased.lease, b"x", 0)
    assert connectors.lease(gateway, "c", 2_000, 5_000) is None
    connectors.add(gateway, "c", b"d", 6_000)

    assert not connectors.save(gateway, "c", leased.lease, b"x", 0)


@pytest.mark.law("N7")
def test_concurrent_lease_requests_give_one_lease(connectors: ConnectorStore, gateway: str) -> None:
    connectors.add(gateway, "c", b"d", 1_000)
    with ThreadPoolExecutor(8) as pool:
        leases = list(pool.map(lambda _: connectors.lease(gateway, "c", 2_000, 5_000), range(8)))

    assert sum(lease is not None for lease in leases) == 1
