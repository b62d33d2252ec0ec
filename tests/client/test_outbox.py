"""The outbox by itself: what it prints, and what it costs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lakesync.client import Client, Fault, Status
from lakesync.client.storage.misuse import PAGE_DELTAS_MAX
from lakesync.client.storage.outbox import next_batch
from lakesync.errors import ValidationFailed
from lakesync.result import Err

if TYPE_CHECKING:
    from tests.client.support.world import World


@pytest.mark.parametrize("status", Status)
def test_a_status_prints_its_name(status: Status) -> None:
    assert f"{status}" == str(status) == status.name.lower()


def steps_of_a_batch(client: Client) -> int:
    """Count what SQLite does to choose a batch, in hundreds of steps of its machine."""
    steps = 0

    def count() -> None:
        nonlocal steps
        steps += 1

    database = client._file.database
    with database.transaction() as connection:
        connection.set_progress_handler(count, 100)
        batch = next_batch(client._file.outbox, 50)
        connection.set_progress_handler(None, 0)
    assert batch is not None
    assert len(batch.entries) == 50
    return steps


def test_reading_a_batch_costs_the_same_however_long_the_outbox_is(world: World) -> None:
    transport = world.transport()
    client = world.client(transport=transport)
    with client.transaction() as edits:
        edits.insert("todos", "first", {"n": 0}).unwrap()
    client.push().unwrap()
    for number in range(100):
        client.insert("todos", f"t{number}", {"n": number}).unwrap()
    short = steps_of_a_batch(client)
    for number in range(3_000):
        client.insert("todos", f"u{number}", {"n": number}).unwrap()
    assert steps_of_a_batch(client) <= short + 2

    transport.faults.append(Fault.LOSE_REQUEST)
    assert isinstance(client.push(), Err)
    assert steps_of_a_batch(client) <= short + 2


@pytest.mark.parametrize("page_deltas", [-1, 0, PAGE_DELTAS_MAX + 1])
def test_a_page_size_outside_its_limits_is_refused(world: World, page_deltas: int) -> None:
    with pytest.raises(ValidationFailed, match="page_deltas must be 1 to") as raised:
        world.client(page_deltas=page_deltas)
    assert raised.value.field == "page_deltas"
