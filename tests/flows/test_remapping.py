"""Polled flows that are declared anew with another map: nothing stays of what the old one did."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from lakesync.adapters.database import Position
from lakesync.core.clock import stamp
from tests.flows.test_polled import MINE, TO_GATEWAY, change, expected, row
from tests.flows.world import GATEWAY, SOURCE_TABLE, World
from tests.support.builders import push, update
from tests.support.gateways import pusher
from tests.support.lake import Killed
from tests.support.sources import use_memory_source

if TYPE_CHECKING:
    from tests.support.sources import MemorySource

MAPS: list[dict[str, Any]] = [
    {},
    {"drop": ["title"]},
    {"hash": ["title"]},
    {"rename": {"title": "name"}, "constant": {"from": "z"}},
    {"rename": {"title": "other"}, "constant": {"from": "a"}},
    {"hash": ["title", "n"], "rename": {"n": "number"}},
]


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> MemorySource:
    """Let there be connectors of the type ``memory``."""
    return use_memory_source(monkeypatch)


def declare_anew(world: World, column_map: dict[str, Any], **body: Any) -> None:
    """Declare the flow with another map, as ``apply --replace`` does."""
    world.admin.remove(GATEWAY, "flow")
    world.time.now_ms += 100_000
    world.declare(map={SOURCE_TABLE: column_map}, **body)


def shown(world: World, to: dict[str, Any]) -> Any:
    """Return the rows where the flow goes, without what is null there."""
    rows = world.in_gateway() if to else world.rows()
    return {key: {c: v for c, v in one.items() if v is not None} for key, one in rows.items()}


@pytest.mark.law("Y6")
@pytest.mark.parametrize("to", [{}, TO_GATEWAY])
@pytest.mark.parametrize("moves", [False, True])
def test_flow_with_a_new_map_keeps_no_column_or_value_of_the_old_one(
    to: dict[str, Any], *, moves: bool
) -> None:
    world = World()
    world.commit(row(1), row(2))
    world.declare(map={SOURCE_TABLE: MAPS[0]}, **to)
    world.poll()
    for number, column_map in enumerate([*MAPS[1:], *MAPS[::-1], *MAPS]):
        if moves:
            world.commit(change("r1", number, n=number))
        declare_anew(world, column_map, **to)
        assert world.poll() == "done"
        assert shown(world, to) == expected(world, map={SOURCE_TABLE: column_map})
        world.commit(change("r2", 50 + number, title=f"later {number}"))
        assert world.poll() == "done"
        assert shown(world, to) == expected(world, map={SOURCE_TABLE: column_map})


@pytest.mark.law("Y5", "Y6")
@pytest.mark.parametrize("to", [{}, TO_GATEWAY])
@pytest.mark.parametrize("after", [False, True])
def test_rewrite_after_a_map_change_is_completed_after_a_kill(
    to: dict[str, Any], *, after: bool
) -> None:
    for step in range(1, 8):
        world = World()
        world.commit(*(row(number) for number in range(5)))
        world.declare(**to)
        world.poll()
        declare_anew(world, MAPS[2], **to)
        world.steps.left, world.steps.last_happens = step, after
        with suppress(Killed):
            world.poll()
        world.steps.left = 1_000_000
        world.commit(change("r3", 9, title="later"))
        assert world.poll() == "done"
        assert world.poll() == "done"
        assert shown(world, to) == expected(world, map={SOURCE_TABLE: MAPS[2]})


@pytest.mark.law("Y5")
@pytest.mark.parametrize("to", [{}, TO_GATEWAY])
@pytest.mark.parametrize("others", [(), (1,)])
def test_row_removed_by_a_filter_reappears_with_a_wider_filter(
    to: dict[str, Any], others: tuple[int, ...]
) -> None:
    world = World()
    world.commit(row(2), *map(row, others))
    world.declare(filter=MINE, **to)
    world.poll()
    world.commit(change("r2", 10, n=20))
    world.poll()
    assert "r2" not in shown(world, to)
    declare_anew(world, {}, **to)
    world.poll()
    assert shown(world, to) == expected(world)
    assert "r2" in shown(world, to)


@pytest.mark.law("Y6")
def test_map_change_keeps_values_that_clients_wrote() -> None:
    world = World()
    world.commit(row(1), row(2))
    world.declare(**TO_GATEWAY)
    world.poll()
    mine = update(
        "r1", table=SOURCE_TABLE, at=stamp(world.time.wall_clock()), client="ann",
        note="mine", title="also mine",
    )  # fmt: skip
    pusher(world.buffer, time_=world.time).push(GATEWAY, push(mine, client="ann"))
    declare_anew(world, {"drop": ["title"]}, **TO_GATEWAY)
    assert world.poll() == "done"

    assert world.in_gateway() == {
        "r1": {"n": 1, "note": "mine", "title": "also mine"},
        "r2": {"n": 2, "title": None},
    }


@pytest.mark.law("Y6")
def test_downstream_flow_follows_a_map_change() -> None:
    world = World()
    world.commit(row(1), row(2))
    world.declare()
    world.poll()
    world.by_hand.databases["warehouse", f"{GATEWAY}/flow"] = world.database()
    source = {"database": "mysql", "secret": "warehouse", "gateway": f"{GATEWAY}/flow"}
    world.admin.declare(
        GATEWAY,
        world.body(
            name="further", source=source, destination={"database": "postgres", "secret": "far"}
        ),
    )
    far = world.database("far", "further")
    world.poll("further")
    assert world.rows(far) == world.rows() != {}

    declare_anew(world, MAPS[2])
    world.poll()
    world.poll("further")
    assert world.rows(far) == world.rows() == expected(world, map={SOURCE_TABLE: MAPS[2]})


@pytest.mark.law("Y6")
def test_refill_with_the_same_map_writes_nothing() -> None:
    world = World()
    world.commit(row(1), row(2))
    world.declare(map={SOURCE_TABLE: MAPS[3]})
    world.poll()
    mark = world.database().mark(SOURCE_TABLE).unwrap()
    declare_anew(world, MAPS[3])
    world.poll()
    assert world.database().mark(SOURCE_TABLE).unwrap() == mark
    history = world.database().query_deltas_since(SOURCE_TABLE, Position(), 100).unwrap().deltas
    assert len(history) == 2


@pytest.mark.law("Y6")
def test_connector_rows_are_rewritten_in_the_gateway_after_a_map_change(
    memory: MemorySource,
) -> None:
    world = World()
    memory.put({"a": 1, "b": 2})
    source = {"connector": "memory", "configuration": {"token": "t"}}
    world.declare(source=source, **TO_GATEWAY)
    world.poll()
    assert world.in_gateway("things") == {"a": {"value": 1}, "b": {"value": 2}}

    world.admin.remove(GATEWAY, "flow")
    memory.put({"b": 3})
    world.declare(source=source, map={"things": {"rename": {"value": "worth"}}}, **TO_GATEWAY)
    world.poll()
    assert world.in_gateway("things") == {
        "a": {"value": None, "worth": 1}, "b": {"value": None, "worth": 3},
    }  # fmt: skip
