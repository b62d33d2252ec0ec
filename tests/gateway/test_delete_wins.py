"""What readers and writers are told of a row that is deleted while others edit it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakesync.core.delta import Op, make_delta, parse
from lakesync.core.merge import EMPTY, as_read, fold, view
from lakesync.core.messages import Pull
from lakesync.gateway.filtered_reads import RuleFilter
from tests.support.builders import at_ms, delete, insert, update
from tests.support.gateways import (
    GATEWAY,
    MINE,
    GatewayWorld,
    deltas_of,
)
from tests.support.strategies import row_deltas

if TYPE_CHECKING:
    from lakesync.core.delta import Delta


class World(GatewayWorld):
    """A gateway of which one table is declared so, and one with sync rules for its clients."""

    def __init__(self, *filters: dict[str, Any]) -> None:
        super().__init__()
        columns = [{"name": name, "type": "string"} for name in ("owner", "title")]
        columns += [{"name": name, "type": "json"} for name in "pqr"]
        self.admin.register_schema(
            GATEWAY, {"table": "todos", "columns": columns, "deleteWins": True}
        )
        if filters:
            self.rules({"tables": ["todos"], "filters": list(filters)})
        self.cursors: dict[str, Pull] = {}

    def push(self, *deltas: Delta, sub: str | None = "c1", **more: Any) -> list[str]:
        """Push, each by itself; returns the codes of refusals."""
        return [
            code for delta in deltas for code in super(World, self).push(delta, sub=sub, **more)
        ]

    def news(self, sub: str) -> list[Delta]:
        self.time.now_ms += 300
        at = self.cursors.get(sub) or Pull(sub, claims={"sub": sub}, removes=True)
        page = self.pulls.pull(GATEWAY, at)
        self.cursors[sub] = replace(at, since=page.cursor, scope=page.scope)
        return deltas_of(page)

    def pull(self, sub: str) -> list[tuple[str, dict[str, bytes]]]:
        return [(delta.op.name, dict(delta.columns)) for delta in self.news(sub)]


@pytest.mark.law("V11")
def test_client_that_saw_the_row_is_sent_its_delete_and_no_later_update() -> None:
    world = World(MINE)
    world.push(insert(at=at_ms(0), owner="ann", title="one"), sub="ann")
    assert world.pull("ann") == [("INSERT", {"owner": b'"ann"', "title": b'"one"'})]

    world.push(delete(at=at_ms(1)), update(at=at_ms(9), title="late"), sub="ann")
    world.push(update(at=at_ms(10), owner="bob"), sub="bob")

    assert world.pull("ann") == [("DELETE", {})]
    assert world.pull("bob") == []


@pytest.mark.law("V11")
def test_delete_with_an_older_stamp_than_an_update_deletes_the_row() -> None:
    world = World(MINE)
    world.push(insert(at=at_ms(0), owner="ann"), update(at=at_ms(9), title="x"), sub="ann")
    world.pull("ann")

    world.push(delete(at=at_ms(1)), sub="ann")

    assert world.pull("ann") == [("DELETE", {})]


@pytest.mark.law("V11")
def test_insert_after_a_delete_sends_the_whole_row() -> None:
    world = World(MINE)
    world.push(insert(at=at_ms(0), owner="ann", title="one"), delete(at=at_ms(1)), sub="ann")
    assert [op for op, _ in world.pull("ann")] == ["INSERT", "DELETE"]
    world.push(update(at=at_ms(9), title="late"), sub="ann")
    assert world.pull("ann") == []

    world.push(insert(at=at_ms(12), owner="ann", title="back"), sub="ann")

    assert world.pull("ann") == [
        ("DELETE", {}), ("INSERT", {"owner": b'"ann"', "title": b'"back"'})
    ]  # fmt: skip


@pytest.mark.law("V11")
def test_insert_cannot_reveal_columns_that_others_wrote_after_the_delete() -> None:
    world = World(MINE)
    made = insert(at=at_ms(0), owner="ann"), delete(at=at_ms(2))
    late = update(at=at_ms(3), owner="ann", title="secret")
    world.push(*made, late, sub="ann")

    assert world.push(insert(at=at_ms(4), owner="bob"), sub="bob") == ["FORBIDDEN"]
    assert world.push(insert(at=at_ms(1), owner="bob", title="x"), sub="bob") == []
    assert world.push(insert(at=at_ms(2, 5), owner="bob", title="x"), sub="bob") == ["FORBIDDEN"]
    assert world.pull("bob") == []
    assert world.push(insert(at=at_ms(5), owner="ann"), sub="ann") == []
    assert world.push(delete(at=at_ms(6)), update(at=at_ms(7), title="secret"), sub="ann") == []

    whole = insert(at=at_ms(9), owner="bob", title="mine")
    assert world.push(whole, sub="bob") == [], "nothing of what ann wrote stays"
    assert world.pull("bob")[-1] == ("INSERT", {"owner": b'"bob"', "title": b'"mine"'})


@pytest.mark.law("V11")
def test_deleted_row_with_nothing_written_since_may_be_inserted_by_any_client() -> None:
    world = World(MINE)
    world.push(insert(at=at_ms(0), owner="ann"), delete(at=at_ms(2)), sub="ann")

    assert world.push(insert(at=at_ms(4), owner="bob"), sub="bob") == []
    assert world.pull("bob")[-1] == ("INSERT", {"owner": b'"bob"'})


@pytest.mark.law("V11")
def test_dead_row_is_not_sent_and_an_alive_one_is_sent_whole() -> None:
    config = World(MINE).buffer.config(GATEWAY)
    shows = RuleFilter(config, Pull("x", claims={"sub": "ann"}, removes=True))
    unseen = fold([delete(at=at_ms(2)), update(at=at_ms(3), owner="ann")])
    there = fold([insert(at=at_ms(4), owner="ann")], unseen)

    assert shows.row("todos", "r1", unseen) == []
    assert fold(shows.row("todos", "r1", there)) == there


@pytest.mark.law("V11")
def test_trial_of_rules_counts_only_alive_rows() -> None:
    world = World()
    world.push(
        insert("r1", at=at_ms(0), owner="ann"), delete("r1", at=at_ms(1)),
        update("r1", at=at_ms(2), owner="ann"), insert("r2", at=at_ms(3), owner="ann"),
    )  # fmt: skip
    body = {"buckets": [{"name": "mine", "tables": ["todos"], "filters": [MINE]}]}

    (todos,) = world.admin.try_rules(GATEWAY, body, {"sub": "ann"})

    assert todos.seen is not None
    assert [row["rowId"] for row in todos.seen.rows] == ["r2"]
    assert todos.seen_in_force == 1


@pytest.mark.law("V5", "V11")
def test_delete_of_a_deleted_row_is_accepted_and_covers_an_older_insert() -> None:
    world = World(MINE)

    assert world.push(delete(at=at_ms(1)), delete(at=at_ms(5)), sub="ann") == []
    assert world.push(insert(at=at_ms(3), owner="ann"), sub="ann") == []
    assert [op for op, _ in world.pull("ann") if op != "DELETE"] == []


@pytest.mark.law("V5", "V11")
def test_delete_of_a_deleted_row_that_was_updated_since_is_accepted() -> None:
    world = World(MINE)
    made = insert(at=at_ms(0), owner="ann"), delete(at=at_ms(2)), update(at=at_ms(9), title="x")
    world.push(*made, sub="ann")

    assert world.push(delete(at=at_ms(5)), sub="ann") == []
    assert world.push(insert(at=at_ms(4), owner="ann"), sub="ann") == []
    assert [op for op, _ in world.pull("ann")][-1] == "DELETE"


def owned(delta: Delta) -> Delta:
    """Return the same change by real stamps; whoever writes a column says whose the row is."""
    op, table, row_id, client_id, hlc, columns, _ = delta
    values = {name: parse(value) for name, value in columns} | {"owner": "ann"}
    return make_delta(
        op, table, row_id, {} if op is Op.DELETE else values,
        client_id=client_id, hlc=at_ms(hlc),
    )  # fmt: skip


@pytest.mark.law("V11")
@given(made=row_deltas, cut=st.integers(0, 8))
@settings(deadline=None)
def test_reader_of_any_pushes_holds_the_row_exactly_if_it_is_alive(
    made: list[Delta], cut: int
) -> None:
    """Under rules that show every row that there is, decided row by row."""
    world = World({"column": "owner", "op": "neq", "value": "nobody"})
    state = EMPTY
    deltas = [owned(delta) for delta in made]
    for part in (deltas[:cut], deltas[cut:]):
        assert world.push(*part, sub="ann") == []
        state = fold(world.news("x"), state)

    assert view(as_read(state, delete_wins=True)) == view(as_read(fold(deltas), delete_wins=True))
