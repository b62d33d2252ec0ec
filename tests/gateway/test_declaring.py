"""Who may declare tables and columns: no user uses a gateway up, or keeps its administrator out."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from lakesync.core.config import GatewayConfig, config_from_json, config_to_json
from lakesync.core.names import folded
from lakesync.errors import Conflict, NotFound, TooManyTables
from lakesync.log import declare as declared_names
from lakesync.log.declare import Declare, admitting, user_digest
from tests.support.builders import at_ms, delete, insert, push, update
from tests.support.gateways import GATEWAY, GatewayWorld

if TYPE_CHECKING:
    from lakesync.core.messages import PushReceipt
    from lakesync.gateway.push import PushService

TITLE = [{"name": "title", "type": "string"}]
ALL_OF_TODOS = {"buckets": [{"name": "mine", "tables": ["todos"], "filters": []}]}


def sent(service: PushService, *deltas: Any, user: str = "ann", trusted: bool = False) -> list[str]:
    """Push as a user, or as a connector; returns why deltas were refused."""
    asked = replace(push(*deltas), claims={"sub": user}, trusted=trusted)
    return refusals(service.push(GATEWAY, asked))


def refusals(receipt: PushReceipt) -> list[str]:
    return [item.error.code for item in receipt.outcomes if item.error]


def declare_only(world: GatewayWorld, *deltas: Any, user: str = "ann") -> None:
    """Declare the names of deltas, as a push does that dies before its commit."""
    chance = world.pusher()._declare._chance
    declare = Declare(
        world.buffer, wall_clock=world.time.wall_clock, sleep_ms=lambda _: None, chance=chance
    )
    declare(GATEWAY, lambda config: admitting(config, user, deltas))


def forget_rows(world: GatewayWorld) -> None:
    """Forget all rows, as retention does once all of them are deleted."""
    world.buffer._gateways[GATEWAY].rows.clear()
    world.buffer._places.clear()


# --- how many -------------------------------------------------------------------------------------


@pytest.mark.law("S7")
def test_user_declares_a_bounded_number_of_tables_over_all_its_clients(
    world: GatewayWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(declared_names, "CLIENT_TABLES_MAX", 2)
    tables = [insert("r1", table=f"t{number}", at=at_ms(number)) for number in range(4)]

    assert sent(world.pushes, *tables) == ["TOO_MANY_TABLES"] * 2
    other_client = insert("r1", table="t9", at=at_ms(9), client="tablet")
    asked = replace(push(other_client, client="tablet"), claims={"sub": "ann"})
    assert refusals(world.pushes.push(GATEWAY, asked)) == ["TOO_MANY_TABLES"]
    assert sent(world.pushes, tables[2], user="bob") == []
    assert sent(world.pushes, tables[3], trusted=True) == []
    # What a schema names is nobody's.
    world.admin.register_schema(GATEWAY, {"table": "t0", "columns": TITLE})
    assert sent(world.pushes, insert("r1", table="t5", at=at_ms(10))) == []
    assert sent(world.pushes, insert("r1", table="t6", at=at_ms(11))) == ["TOO_MANY_TABLES"]


@pytest.mark.law("S7")
def test_declared_tables_leave_room_for_tables_with_schemas(
    world: GatewayWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(declared_names, "TABLES_MAX", 4)
    monkeypatch.setattr(declared_names, "DECLARED_TABLES_MAX", 3)
    tables = [insert("r1", table=f"t{number}", at=at_ms(number)) for number in range(4)]

    assert sent(world.pushes, *tables, trusted=True) == ["TOO_MANY_TABLES"]
    world.admin.register_schema(GATEWAY, {"table": "s1", "columns": TITLE})
    with pytest.raises(TooManyTables):
        world.admin.register_schema(GATEWAY, {"table": "s2", "columns": TITLE})
    world.admin.register_schema(GATEWAY, {"table": "t0", "columns": TITLE})


@pytest.mark.law("S7")
def test_user_declares_a_bounded_number_of_columns_per_table_and_in_total(
    world: GatewayWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(declared_names, "CLIENT_TABLE_COLUMNS_MAX", 2)
    monkeypatch.setattr(declared_names, "CLIENT_COLUMNS_MAX", 3)

    assert sent(world.pushes, insert("r1", at=at_ms(1), a=1, b=1)) == []
    assert sent(world.pushes, insert("r2", at=at_ms(2), c=1)) == ["TOO_MANY_COLUMNS"]
    assert sent(world.pushes, insert("r3", at=at_ms(3), c=1), user="bob") == []
    assert sent(world.pushes, insert("r4", table="notes", at=at_ms(4), a=1)) == []
    assert sent(world.pushes, insert("r5", table="notes", at=at_ms(5), b=1)) == ["TOO_MANY_COLUMNS"]
    assert sent(world.pushes, update("r1", at=at_ms(6), a=2, b=2, c=2)) == []


@pytest.mark.law("S7")
def test_column_names_declared_by_clients_leave_room_for_schemas(
    world: GatewayWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(declared_names, "DECLARED_BYTES_MAX", 1_000)
    long = [
        insert(f"r{n}", at=at_ms(n), **dict[str, Any]({f"{'c' * 60}{n}": 1})) for n in range(30)
    ]

    refused = sent(world.pushes, *long)

    assert set(refused) == {"TOO_MANY_COLUMNS"}
    assert 10 < len(refused) < 20
    columns = [{"name": f"{'s' * 60}{n}", "type": "string"} for n in range(100)]
    world.admin.register_schema(GATEWAY, {"table": "orders", "columns": columns})


# --- under rules ----------------------------------------------------------------------------------


@pytest.mark.law("S7", "V5")
def test_rules_restrict_declarations_to_tables_that_a_bucket_or_schema_names(
    world: GatewayWorld,
) -> None:
    sent(world.pushes, insert("r1", table="before", at=at_ms(1)))
    world.admin.save_rules(GATEWAY, ALL_OF_TODOS)
    world.admin.register_schema(GATEWAY, {"table": "orders", "columns": TITLE})

    mine = [
        insert("r2", table=table, at=at_ms(number))
        for number, table in enumerate(("todos", "orders", "before", "scratch"), 2)
    ]
    assert sent(world.pushes, *mine) == ["TABLE_NOT_DECLARED"]
    assert "scratch" not in world.buffer.config(GATEWAY).tables
    assert sent(world.pushes, insert("r3", table="feed", at=at_ms(9)), trusted=True) == []

    world.admin.register_schema(GATEWAY, {"table": "scratch", "columns": TITLE})
    assert sent(world.pushes, mine[-1]) == []


@pytest.mark.law("S7")
def test_omissions_alone_do_not_restrict_table_declarations(world: GatewayWorld) -> None:
    omit = {"buckets": [], "omit": [{"tables": ["todos"], "columns": ["salary"]}]}
    world.admin.save_rules(GATEWAY, omit)

    assert sent(world.pusher(), insert("r1", table="notes", at=at_ms(1))) == []


# --- spellings ------------------------------------------------------------------------------------


@pytest.mark.law("S5")
def test_schema_sets_the_spelling_of_a_table_without_committed_rows(world: GatewayWorld) -> None:
    declare_only(world, insert("r1", table="TODOS", TITLE=1))
    wanted = {"table": "todos", "columns": TITLE, "deleteWins": True}

    saved = world.admin.register_schema(GATEWAY, wanted)

    assert (saved.table, saved.columns[0].name) == ("todos", "title")
    config = world.buffer.config(GATEWAY)
    assert (set(config.tables), set(config.declared)) == (set(), set())
    assert sent(world.pushes, insert("r1", table="TODOS", TITLE=1, at=at_ms(1))) == ["NAME_TAKEN"]
    assert sent(world.pushes, insert("r1", title="a", at=at_ms(2))) == []


@pytest.mark.law("S5")
@pytest.mark.parametrize("is_flushed", [False, True])
def test_schema_adopts_the_spelling_of_committed_rows_in_all_its_declarations(
    world: GatewayWorld, *, is_flushed: bool
) -> None:
    sent(world.pushes, insert("r1", table="TODOS", TITLE="a", Due="2026-01-01", at=at_ms(1)))
    if is_flushed:  # and nothing else is left of it
        world.buffer.save_flushed_table(GATEWAY, "TODOS", 1)
        forget_rows(world)
    wanted = {
        "table": "todos",
        "columns": [*TITLE, {"name": "due", "type": "date"}, {"name": "done", "type": "boolean"}],
        "primaryKey": ["row_id", "title"],
        "partition": ["month(due)"],
        "sort": ["title"],
        "externalIdColumn": "title",
    }

    saved = world.admin.register_schema(GATEWAY, wanted)

    assert (saved.table, [column.name for column in saved.columns]) == (
        "TODOS", ["TITLE", "Due", "done"]
    )  # fmt: skip
    assert saved.primary_key == ("row_id", "TITLE")
    assert (saved.partition, saved.sort) == (("month(Due)",), ("TITLE",))
    assert saved.external_id_column == "TITLE"
    assert sent(world.pushes, update("r1", table="TODOS", done=True, at=at_ms(3))) == []


@pytest.mark.law("S5")
@pytest.mark.parametrize("lanes", [1, 3])
def test_schema_adopts_the_spelling_of_a_row_committed_while_it_is_registered(
    world: GatewayWorld, lanes: int
) -> None:
    """Whenever a push comes between the look for rows and the change, it counts."""
    if lanes > 1:
        world.admin.place_table(GATEWAY, "TODOS", "hot")
    declare_only(world, insert("r1", table="TODOS", TITLE=1))
    scanning, meanwhile = (
        world.buffer.scan_rows,
        [insert("r1", table="TODOS", TITLE="x", at=at_ms(1))],
    )

    def scan_rows(*asked: Any) -> Any:
        rows = scanning(*asked)
        if meanwhile:
            assert sent(world.pushes, meanwhile.pop()) == []
        return rows

    world.buffer.scan_rows = scan_rows  # type: ignore[method-assign,assignment]
    saved = world.admin.register_schema(GATEWAY, {"table": "todos", "columns": TITLE})

    assert (saved.table, saved.columns[0].name) == ("TODOS", "TITLE")
    names = [*world.buffer.config(GATEWAY).tables, *world.buffer.config(GATEWAY).schemas]
    assert {folded(name) for name in names} == {"todos"}
    assert set(names) == {"TODOS"}


# --- removal --------------------------------------------------------------------------------------


@pytest.mark.law("S7")
def test_table_without_any_data_can_be_removed_and_its_name_reused(world: GatewayWorld) -> None:
    declare_only(world, insert("r1", table="Scratch", a=1))

    world.admin.remove_table(GATEWAY, "Scratch", dry_run=True)
    assert world.admin.knows_table(GATEWAY, "Scratch")
    world.admin.remove_table(GATEWAY, "Scratch")

    assert not world.admin.knows_table(GATEWAY, "Scratch")
    assert world.buffer.config(GATEWAY).declared == {}
    assert sent(world.pushes, insert("r1", table="scratch", A=1, at=at_ms(1))) == []
    with pytest.raises(NotFound):
        world.admin.remove_table(GATEWAY, "Scratch")


@pytest.mark.law("S7")
def test_table_with_data_rules_or_a_schema_cannot_be_removed(world: GatewayWorld) -> None:

    def refused(table: str) -> str:
        with pytest.raises(Conflict) as caught:
            world.admin.remove_table(GATEWAY, table)
        assert world.admin.knows_table(GATEWAY, table)
        return caught.value.message

    sent(world.pushes, insert("r1", at=at_ms(1)), insert("r1", table="notes", at=at_ms(2)))
    assert "rows" in refused("todos")
    sent(world.pushes, delete("r1", at=at_ms(3)))
    assert "deletions" in refused("todos")
    forget_rows(world)
    assert "wait to be flushed" in refused("todos")
    world.admin.save_rules(
        GATEWAY, {"buckets": [{"name": "b", "tables": ["notes"], "filters": []}]}
    )
    assert "rules" in refused("notes")
    world.admin.register_schema(GATEWAY, {"table": "orders", "columns": TITLE})
    assert "schema" in refused("orders")


# --- as it is stored ------------------------------------------------------------------------------


def test_declarations_are_stored_by_user_digest_without_names() -> None:
    config = admitting(GatewayConfig(), "ann@example.org", [insert("r1", a=1, b=2)])
    config = admitting(config, None, [insert("r1", table="feed", a=1)])
    body = config_to_json(config)

    assert "ann" not in str(body)
    ann = user_digest("ann@example.org")
    assert body["declared"] == {"todos": [ann, {ann: 2}]}
    assert config_from_json(body) == config
