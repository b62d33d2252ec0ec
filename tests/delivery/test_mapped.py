"""Flows from the gateway to a database: destinations with column maps. Laws Y2-Y6."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakesync.core.destinations import QUIET_MS
from lakesync.core.messages import Pull
from lakesync.delivery.source_pull import SourcePulls
from lakesync.errors import DestinationRefused, ValidationFailed
from tests.delivery.world import World
from tests.support.builders import at_ms, delete, insert, update
from tests.support.gateways import GATEWAY
from tests.support.lake import Killed, Life

if TYPE_CHECKING:
    from lakesync.core.delta import Delta

MAP: dict[str, Any] = {
    "todos": {
        "rename": {"title": "name"},
        "drop": ["n"],
        "hash": ["email"],
        "constant": {"origin": "app"},
    }
}
MINE = [{"name": "mine", "tables": [], "filters": [{"column": "n", "op": "lt", "value": 10}]}]


def some(count: int, first: int = 0) -> list[Delta]:
    """Return inserts of rows, one after another."""
    return [
        insert(f"r{n}", at=at_ms(n), n=n, title=f"t{n}", email=f"{n}@example.com")
        for n in range(first, first + count)
    ]


def stored(world: World) -> str:
    """Return all that a destination's ledger holds, as text."""
    database = world.databases["warehouse"]
    return repr(database.rows_after("todos", "", 1_000).unwrap().rows)


@pytest.mark.law("Y2", "Y3")
@pytest.mark.parametrize("buckets", [[], MINE])
def test_rows_are_filtered_before_they_are_mapped(buckets: Any) -> None:
    world = World()
    world.push(*some(3, 8), delete("r8", at=at_ms(50)))
    world.flush()
    world.declare(map=MAP, buckets=buckets)
    world.deliver()
    world.push(update("r9", at=at_ms(60), title="changed", fresh=1), *some(2, 5))
    world.flush()
    world.deliver()

    world.check()
    assert world.rows()["r9"]["name"] == "changed"
    assert world.rows()["r9"]["fresh"] == 1, "a column new at the source is new there"
    assert world.rows()["r9"]["origin"] == "app"
    assert ("r10" in world.rows()) is (not buckets), "decided by a column that does not go there"
    assert "example.com" not in stored(world)
    world.push(update("r9", at=at_ms(70), n=99))
    world.flush()
    world.deliver()
    world.check()
    assert ("r9" in world.rows()) is (not buckets)


@pytest.mark.law("Y5")
@pytest.mark.parametrize("last_happens", [False, True])
def test_mapped_delivery_killed_anywhere_is_completed_by_the_next_one(
    *, last_happens: bool
) -> None:
    for writes in range(60):
        world = World()
        world.push(*some(4))
        world.flush()
        life = Life(writes, last_happens=last_happens)
        with suppress(Killed):
            world.declare(life=life, buckets=MINE, map=MAP)
            world.push(update("r3", at=at_ms(70), n=50), update("r2", at=at_ms(71), title="new"))
            world.flush(life)
            world.deliver(life)
        world.declare(buckets=MINE, map=MAP)
        world.flush()
        world.deliver()
        world.sweep()

        world.check()


@pytest.mark.law("Y1", "Y5")
@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["r1", "r2", "r3"]),
            st.sampled_from(["insert", "update", "delete"]),
            st.integers(1, 20),
            st.sampled_from(["push", "flush", "deliver", "backfill"]),
        ),
        max_size=12,
    )
)
def test_destination_holds_the_mapped_rows_after_any_deliveries(
    steps: list[tuple[str, str, int, str]],
) -> None:
    makes = {"insert": insert, "update": update}
    world = World()
    world.declare(map=MAP)
    for place, (row, op, n, then) in enumerate(steps):
        at = at_ms(n, place)  # late ones too, as clients were offline
        made = delete(row, at=at) if op == "delete" else makes[op](row, at=at, n=n, title=str(n))
        world.push(made)
        if then != "push":
            world.flush()
        if then == "deliver":
            world.deliver()
        if then == "backfill":
            world.destinations().backfill(GATEWAY, "warehouse")
    world.flush()
    world.deliver()
    world.sweep()

    world.check()


@pytest.mark.law("Y6")
@pytest.mark.parametrize("maps", [[{}, MAP], [MAP, {}], [MAP, {"todos": {"drop": ["email"]}}]])
def test_destination_with_a_new_map_keeps_nothing_of_the_old_one(
    maps: list[dict[str, Any]],
) -> None:
    world = World()
    world.push(*some(4), delete("r1", at=at_ms(90)))
    world.flush()
    for column_map in maps:
        world.declare(map=column_map)
        world.deliver()
        world.check()
        shown = {column for row in world.rows().values() for column in row}
        dropped = {"n", "title"} if column_map is MAP else {"name", "origin"}
        assert not shown & dropped
        assert ("example.com" in stored(world)) is (column_map == {})
        world.destinations().remove(GATEWAY, "warehouse")
        world.deliver()
        world.time.now_ms += QUIET_MS


@pytest.mark.law("Y2")
def test_pull_by_clients_from_a_mapped_destination_is_refused() -> None:
    world = World()
    world.declare(map=MAP)
    world.deliver()
    pulls = SourcePulls(
        world.buffer,
        lambda _, destination: world.databases[destination.secret],
        wall_clock=world.time.wall_clock,
    )

    with pytest.raises(ValidationFailed, match="other columns"):
        pulls.pull(GATEWAY, Pull("c1", source="warehouse", snapshot="begin"))


@pytest.mark.law("Y4")
def test_event_filter_is_refused_on_mapped_columns_only() -> None:
    world = World()
    body = {
        "table": "events",
        "columns": [{"name": "n", "type": "integer"}, {"name": "m", "type": "integer"}],
        "append": True,
    }
    world.admin.register_schema(GATEWAY, body)
    buckets = [MINE[0] | {"tables": ["events"]}]

    with pytest.raises(DestinationRefused, match="told apart"):
        world.declare(tables=["events"], buckets=buckets, map={"events": {"hash": ["n"]}})
    world.declare(tables=["events"], buckets=buckets, map={"events": {"drop": ["m"]}})
