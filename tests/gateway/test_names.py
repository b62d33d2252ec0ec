"""Names that fold together are one: the first spelling stands, and another is refused by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from lakesync.errors import NameTaken
from lakesync.log import declare
from tests.support.builders import at_ms, insert, push, update
from tests.support.gateways import GATEWAY, GatewayWorld

if TYPE_CHECKING:
    from lakesync.core.messages import PushReceipt


def refused(receipt: PushReceipt) -> dict[int, str]:
    return {item.index: item.error.message for item in receipt.outcomes if item.error}


def sent(service: Any, *deltas: Any, **more: Any) -> dict[int, str]:
    return refused(service.push(GATEWAY, push(*deltas, **more)))


@pytest.mark.law("S5")
def test_a_table_keeps_its_first_spelling(world: GatewayWorld) -> None:
    tables = ("todos", "Todos", "notes", "TODOS", "todos")
    refusals = sent(world.pushes, *(insert(table=t, at=at_ms(n)) for n, t in enumerate(tables)))

    assert refusals.keys() == {1, 3}
    assert "the table Todos is there already, spelled todos" in refusals[1]
    assert {table for table, _ in world.buffer._gateways[GATEWAY].rows} == {"todos", "notes"}
    assert sent(world.pusher(), insert(table="Notes", at=at_ms(9))).keys() == {0}


@pytest.mark.law("S5")
def test_a_column_keeps_its_first_spelling_in_all_rows(world: GatewayWorld) -> None:
    assert sent(world.pushes, insert("r1", title="a", at=at_ms(1))) == {}
    refusals = sent(
        world.pushes,
        insert("r2", Title="b", at=at_ms(2)),
        update("r1", done=True, at=at_ms(3)),
        update("r2", Done=True, at=at_ms(4)),
        insert("r3", table="other", Title="c", at=at_ms(5)),
    )

    assert refusals.keys() == {0, 2}
    assert "the column Title is there already, spelled title" in refusals[0]
    assert world.buffer.config(GATEWAY).tables == {"todos": {"title", "done"}, "other": {"Title"}}


@pytest.mark.law("S5")
def test_known_names_cost_no_read_and_no_new_configuration(
    world: GatewayWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent(world.pushes, insert("r1", title="a", at=at_ms(1)))
    version = world.buffer.config(GATEWAY).version
    sent(world.pushes, update("r1", title="b", at=at_ms(2)))
    monkeypatch.setattr(world.buffer, "config", None)

    assert sent(world.pushes, update("r1", title="c", at=at_ms(3))) == {}
    monkeypatch.undo()
    assert world.buffer.config(GATEWAY).version == version


@pytest.mark.law("S5")
def test_atomic_push_with_another_spelling_of_a_column_declares_nothing(
    world: GatewayWorld,
) -> None:
    both = insert("r1", title="a", at=at_ms(1)), insert("r2", TITLE="a", at=at_ms(2))

    assert sent(world.pusher(), *both, atomic=True).keys() == {0, 1}
    assert world.buffer.config(GATEWAY).version == 0


@pytest.mark.law("S5")
def test_first_declared_spelling_of_two_concurrent_pushes_stands(world: GatewayWorld) -> None:
    mine, theirs = (world.pusher(seed) for seed in (0, 1))
    sent(mine, insert("r1", table="t0", n=1, at=at_ms(1)))
    sent(theirs, update("r1", table="t0", n=2, at=at_ms(2)))
    saving = world.buffer.save_config
    meanwhile = [insert("r1", table="todos", Title=1, at=at_ms(3))]

    def save_config(*asked: Any, **named: Any) -> None:
        if meanwhile:
            assert sent(theirs, meanwhile.pop()) == {}
        saving(*asked, **named)

    world.buffer.save_config = save_config  # type: ignore[method-assign]
    refusals = sent(
        mine,
        insert("r2", table="Todos", at=at_ms(4)),
        insert("r2", table="todos", title=2, at=at_ms(5)),
        insert("r3", table="todos", Title=3, at=at_ms(6)),
    )

    assert refusals.keys() == {0, 1}
    assert world.buffer.config(GATEWAY).tables == {"t0": {"n"}, "todos": {"Title"}}


@pytest.mark.law("S5")
def test_schema_adopts_declared_names_and_its_own_spelling_stands(world: GatewayWorld) -> None:
    sent(world.pushes, insert("r1", title="a", at=at_ms(1)))

    body = {"table": "Todos", "columns": [{"name": "Title", "type": "string"}], "sort": ["Title"]}
    saved = world.admin.register_schema(GATEWAY, body)
    assert (saved.table, saved.columns[0].name, saved.sort) == ("todos", "title", ("title",))
    for table, column in (("Todos", "title"), ("todos", "Title")):  # a schema's spelling stands
        body = {"table": table, "columns": [{"name": column, "type": "string"}]}
        with pytest.raises(NameTaken):
            world.admin.register_schema(GATEWAY, body)

    refusals = sent(
        world.pushes,
        insert("r2", Title="b", at=at_ms(2)),
        insert("r2", table="TODOS", title="b", at=at_ms(3)),
    )
    assert "spelled title" in refusals[0]
    assert "spelled todos" in refusals[1]
    with pytest.raises(NameTaken):
        world.admin.place_table(GATEWAY, "Todos", "s1")


@pytest.mark.law("S5")
def test_table_without_a_schema_has_a_bounded_number_of_columns(
    world: GatewayWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(declare, "TABLE_COLUMNS_MAX", 2)
    many = [update(f"r{n}", at=at_ms(n), **dict[str, Any]({f"c{n}": n})) for n in range(4)]

    receipt = world.send(*many)

    codes = {item.index: item.error.code for item in receipt.outcomes if item.error}
    assert codes == {2: "TOO_MANY_COLUMNS", 3: "TOO_MANY_COLUMNS"}
    assert sent(world.pushes, update("r0", c1="x", at=at_ms(9))) == {}
