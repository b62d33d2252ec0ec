"""`status`: what an app can tell its user about syncing, now and as it changes."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from lakesync.client import ClientStatus, Fault, MemoryTransport
from lakesync.errors import SchemaMismatch, Unreachable
from tests.client.support.gateways import GATEWAY
from tests.client.support.world import reopened
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from lakesync.core.messages import Pull, PullPage
    from tests.client.support.world import World

SOON_S = PATIENCE_S


@pytest.mark.law("K23")
def test_the_status_shows_pending_edits_and_the_time_of_the_last_sync(both: World) -> None:
    client = both.client()
    assert client.status == ClientStatus()
    client.insert("todos", "t1", {"title": "x"}).unwrap()
    client.insert("todos", "t2", {"title": "x"}).unwrap()
    assert client.status == ClientStatus(pending=2)
    client.sync().unwrap()
    synced = client.status
    at = datetime.fromtimestamp(both.clock.ms / 1000, UTC)
    assert (synced.has_synced, synced.last_synced_at, synced.pending) == (True, at, 0)
    both.clock.ms += 60_000
    client.sync().unwrap()
    assert client.status.last_synced_at == datetime.fromtimestamp(both.clock.ms / 1000, UTC)
    again = reopened(both, client)
    assert again.status.has_synced
    assert again.status.last_synced_at == at


@pytest.mark.law("K23")
def test_a_client_has_synced_after_pulling_from_an_empty_gateway(both: World) -> None:
    client = both.client()
    client.pull().unwrap()
    assert client.status.has_synced
    assert reopened(both, client).status.has_synced


@pytest.mark.law("K23")
def test_the_status_shows_the_last_error_until_a_sync_succeeds(world: World) -> None:
    transport = world.transport()
    client = world.client(transport=transport)
    client.insert("todos", "t1", {}).unwrap()
    transport.faults += [Fault.LOSE_REQUEST, Fault.NONE]
    client.sync()
    assert isinstance(client.status.last_error, Unreachable)
    assert client.status.pending == 1
    client.sync().unwrap()
    assert client.status.last_error is None


@pytest.mark.law("K23")
def test_the_status_counts_quarantined_edits_separately(world: World) -> None:
    world.gateway.judge = lambda delta: SchemaMismatch("no") if delta.row_id == "bad" else None
    client = world.client()
    client.insert("todos", "bad", {}).unwrap()
    client.sync().unwrap()
    client.insert("todos", "t1", {}).unwrap()
    assert (client.status.pending, client.status.quarantined) == (1, 1)


@pytest.mark.law("K23")
def test_the_status_stream_shows_a_first_sync_page_by_page(world: World) -> None:
    writer = world.client("writer")
    for number in range(40):
        writer.insert("todos", f"t{number}", {}).unwrap()
        if number % 10 == 9:
            writer.push().unwrap()
    seen = threading.Event()

    class Slow(MemoryTransport):
        def pull(self, pull: Pull) -> PullPage:
            page = super().pull(pull)
            assert seen.wait(SOON_S)
            seen.clear()
            return page

    gateway = world.gateway
    client = world.client("b", transport=Slow(GATEWAY, gateway, gateway), page_deltas=10)
    states: list[ClientStatus] = []
    with client.watch_status() as watch:
        states.append(next(watch))
        thread = threading.Thread(target=client.pull)
        thread.start()
        seen.set()
        while not states[-1].has_synced or states[-1].downloading:
            states.append(next(watch))
            seen.set()
        thread.join()
    assert states[0] == ClientStatus()
    assert [s.received for s in states if s.downloading][:3] == [10, 20, 30]
    assert states[-1].received == 40
    assert [s.has_synced for s in states] == sorted(s.has_synced for s in states)


def test_the_status_stream_shows_pending_edits_uploads_and_the_connection(world: World) -> None:
    client = world.client(gather_ms=0)
    with client.watch_status() as watch:
        assert next(watch) == ClientStatus()
        client.insert("todos", "t1", {}).unwrap()
        assert next(watch) == ClientStatus(pending=1)
        client._activity.hears(is_open=True, reason=None)
        assert next(watch) == ClientStatus(pending=1, connected=True)
        with client._activity.uploading():
            assert next(watch).uploading
        assert not next(watch).uploading
        assert watch.next(0.3) is None


def test_the_status_of_a_closed_client_reports_that_it_is_closed(world: World) -> None:
    client = world.client()
    client.close()
    assert "closed" in str(client.status.last_error)
