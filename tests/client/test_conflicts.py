"""Conflicts under rules, and as they are kept until the app settles them."""

from __future__ import annotations

import queue
from dataclasses import replace
from datetime import date
from typing import TYPE_CHECKING, Any

import pytest

from lakesync.client import LostWrite
from lakesync.client.storage import conflicts
from lakesync.client.storage.conflicts import CONFLICTS_MAX
from lakesync.result import Err
from tests.client.support.gateways import GATEWAY
from tests.client.test_sync_rules import MINE, World, sync
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from lakesync.client import Client

pytestmark = pytest.mark.law("K27")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    for client, _ in world.clients.values():
        client.close()


@pytest.fixture(params=["no rules", "rules"])
def two(world: World, request: pytest.FixtureRequest) -> tuple[Client, Client]:
    """Two clients with one row, which both may see."""
    if request.param == "rules":
        world.rules({"filters": [MINE]})
    a, b = world.client("a", "us"), world.client("b", "us")
    b.insert("todos", "t1", {"owner": "us", "title": "old"}).unwrap()
    sync(b, a)
    return a, b


def reported(lost: LostWrite) -> LostWrite:
    return replace(lost, own_stamp=0, other_stamp=0, id=0)


def kept(client: Client) -> list[LostWrite]:
    return [reported(lost) for lost in client.conflicts().unwrap()]


LOST = LostWrite("todos", "t1", "title", "mine", "theirs", "b", base="old")
WON = replace(LOST, won=True)


@pytest.mark.parametrize("first", ["pull", "push"])
def test_a_client_whose_write_lost_is_notified_under_sync_rules(
    two: tuple[Client, Client], first: str
) -> None:
    a, b = two
    heard: queue.Queue[LostWrite] = queue.Queue()
    a.on_conflict(heard.put)
    a.update("todos", "t1", {"title": "mine"}).unwrap()
    b.update("todos", "t1", {"title": "theirs"}).unwrap()
    b.sync().unwrap()
    getattr(a, first)().unwrap()
    a.sync().unwrap()
    sync(b, a)

    assert reported(heard.get(timeout=PATIENCE_S)) == LOST
    assert (kept(a), kept(b)) == ([LOST], [])


@pytest.mark.parametrize("first", ["pull", "push"])
def test_a_client_whose_write_won_over_an_unread_one_records_the_conflict(
    two: tuple[Client, Client], first: str
) -> None:
    a, b = two
    b.update("todos", "t1", {"title": "theirs"}).unwrap()
    a.update("todos", "t1", {"title": "mine"}).unwrap()
    b.sync().unwrap()
    getattr(a, first)().unwrap()
    a.sync().unwrap()
    sync(b, a)

    assert (kept(a), kept(b)) == ([WON], [])


def test_overwriting_a_value_already_read_is_no_conflict(two: tuple[Client, Client]) -> None:
    a, b = two
    b.update("todos", "t1", {"title": "theirs"}).unwrap()
    sync(b, a)
    a.update("todos", "t1", {"title": "mine"}).unwrap()
    a.push().unwrap()
    b.pull().unwrap()
    b.update("todos", "t1", {"title": "again"}).unwrap()
    sync(b, a, b)

    assert (kept(a), kept(b)) == ([], [])


def clash(a: Client, b: Client, table: str = "todos", **values: Any) -> LostWrite:
    """Have ``a`` lose a value of a row to ``b``; returns the newest conflict of ``a``."""
    a.update(table, "t1", {"title": values.get("own", "mine")}).unwrap()
    b.update(table, "t1", {"title": values.get("other", "theirs")}).unwrap()
    sync(b, a)
    return a.conflicts().unwrap()[-1]


@pytest.mark.parametrize(
    ("keep", "value", "title"), [("mine", None, "mine"), ("theirs", None, "theirs"),
                                 ("new", "both", "both")],
)  # fmt: skip
def test_a_conflict_survives_restarts_until_it_is_resolved(
    two: tuple[Client, Client], world: World, keep: Any, value: Any, title: str
) -> None:
    a, b = two
    conflict = clash(a, b)
    a.close()
    a = world.client("a", "us")
    assert a.conflicts().unwrap() == [conflict]
    assert a.status.conflicts == 1

    edit = a.resolve(conflict.id, keep, value).unwrap()
    assert (edit is None) == (keep == "theirs")
    sync(a, b)
    assert (world.titles("a"), world.titles("b")) == ({"t1": title}, {"t1": title})
    assert (a.conflicts().unwrap(), b.conflicts().unwrap()) == ([], [])
    assert a.status.conflicts == 0
    again = a.resolve(conflict.id, keep, value)
    assert isinstance(again, Err)
    assert again.error.code == "NOT_FOUND"
    assert clash(a, b, own="mine, later").id > conflict.id


@pytest.mark.parametrize(("keep", "title"), [("mine", "mine"), ("theirs", "theirs")])
def test_a_conflict_that_was_won_may_be_resolved_in_favour_of_the_other_value(
    two: tuple[Client, Client], world: World, keep: Any, title: str
) -> None:
    a, b = two
    b.update("todos", "t1", {"title": "theirs"}).unwrap()
    a.update("todos", "t1", {"title": "mine"}).unwrap()
    sync(b, a)
    (conflict,) = a.conflicts().unwrap()

    edit = a.resolve(conflict.id, keep).unwrap()
    assert (edit is None) == (keep == "mine")
    sync(a, b)
    assert (world.titles("a"), world.titles("b")) == ({"t1": title}, {"t1": title})


def test_resolving_an_edit_of_a_deleted_row_as_mine_inserts_the_row_again(
    two: tuple[Client, Client],
) -> None:
    a, b = two
    a.update("todos", "t1", {"title": "mine"}).unwrap()
    b.delete("todos", "t1").unwrap()
    sync(b, a)
    (conflict,) = a.conflicts().unwrap()
    assert reported(conflict) == replace(LOST, other=None, deleted=True)

    edit = a.resolve(conflict.id, "mine").unwrap()
    assert edit is not None
    assert edit.op.name == "INSERT"
    assert a.get("todos", "t1").unwrap() == {"title": "mine"}


def test_a_conflict_loses_the_other_clients_values_when_rules_hide_the_row(world: World) -> None:
    world.rules({"filters": [MINE]})
    a, b = world.client("a", "us"), world.client("b", "us")
    b.insert("todos", "t1", {"owner": "us", "title": "old"}).unwrap()
    sync(b, a)
    assert reported(clash(a, b)) == LOST
    b.update("todos", "t1", {"owner": "them"}).unwrap()
    sync(b, a)

    (conflict,) = a.conflicts().unwrap()
    hidden = replace(LOST, other=None, other_client="", base=None, hidden=True)
    assert reported(conflict) == hidden
    rows = a.query("SELECT * FROM _lakesync_conflicts").unwrap()
    assert b"theirs" not in repr(rows).encode()
    assert b"old" not in repr(rows).encode()


def test_a_conflict_loses_the_other_clients_values_when_rules_omit_the_column(world: World) -> None:
    a, b = world.client("a", "us"), world.client("b", "us")
    b.insert("todos", "t1", {"owner": "us", "title": "old"}).unwrap()
    sync(b, a)
    clash(a, b)
    omit = {"tables": ["todos"], "columns": ["Title"]}
    world.gateway._admin.save_rules(GATEWAY, {"buckets": [], "omit": [omit]})
    b.update("todos", "t1", {"owner": "all"}).unwrap()
    sync(a)

    (conflict,) = a.conflicts().unwrap()
    assert (conflict.own, conflict.other, conflict.base, conflict.hidden) == (
        "mine", None, None, True,
    )  # fmt: skip


def test_the_oldest_conflicts_over_the_limit_are_dropped_and_counted(
    two: tuple[Client, Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert CONFLICTS_MAX == 10_000
    monkeypatch.setattr(conflicts, "CONFLICTS_MAX", 2)
    a, b = two
    for number in range(3):
        clash(a, b, own=f"mine {number}", other=f"theirs {number}")

    assert [lost.own for lost in a.conflicts().unwrap()] == ["mine 1", "mine 2"]
    assert (a.status.conflicts, a.status.conflicts_dropped) == (2, 1)


def test_a_conflict_shows_the_current_spelling_and_declared_type_of_its_column(
    world: World,
) -> None:
    a, b = world.client("a", "us"), world.client("b", "us")
    b.insert("notes", "t1", {"due": "2026-01-01"}).unwrap()
    sync(b, a)
    a.update("notes", "t1", {"due": "2026-01-02"}).unwrap()
    b.update("notes", "t1", {"due": "2026-01-03"}).unwrap()
    sync(b, a)
    a.declare("notes", {"due": "date"}).unwrap()

    (conflict,) = a.conflicts().unwrap()
    assert (conflict.base, conflict.own, conflict.other) == (
        date(2026, 1, 1), date(2026, 1, 2), date(2026, 1, 3),
    )  # fmt: skip
    with a._file.database.transaction():
        a._file.catalogue.table("Notes", ["Due"], received=True)
    (conflict,) = a.conflicts().unwrap()
    assert (conflict.table, conflict.column) == ("Notes", "Due")


def test_discarding_an_edit_removes_its_conflict(two: tuple[Client, Client]) -> None:
    a, b = two
    delta = a.update("todos", "t1", {"title": "mine"}).unwrap()
    b.update("todos", "t1", {"title": "theirs"}).unwrap()
    b.push().unwrap()
    a.pull().unwrap()
    assert kept(a) == [LOST]
    a.discard(delta.delta_id).unwrap()

    assert kept(a) == []


def test_a_crash_between_receipt_and_page_loses_no_conflict(
    two: tuple[Client, Client], world: World
) -> None:
    a, b = two
    a.update("todos", "t1", {"title": "mine"}).unwrap()
    b.update("todos", "t1", {"title": "theirs"}).unwrap()
    b.push().unwrap()
    a.push().unwrap()
    a.close()
    a = world.client("a", "us")
    a.sync().unwrap()

    assert kept(a) == [LOST]


def test_a_write_that_replaced_an_unread_value_is_a_conflict_despite_later_writes(
    two: tuple[Client, Client],
) -> None:
    a, b = two
    b.update("todos", "t1", {"title": "theirs"}).unwrap()
    a.update("todos", "t1", {"title": "mine"}).unwrap()
    b.sync().unwrap()
    a.push().unwrap()
    b.pull().unwrap()
    b.update("todos", "t1", {"title": "and on"}).unwrap()
    sync(b, a)  # one page with all three

    assert (kept(a), kept(b)) == ([WON], [])


def test_a_row_hidden_by_rules_meanwhile_causes_no_conflict(
    world: World,
) -> None:
    world.rules({"filters": [MINE]})
    a, b = world.client("a", "us"), world.client("b", "us")
    b.insert("todos", "t1", {"owner": "us", "title": "old"}).unwrap()
    sync(b, a)
    a.update("todos", "t1", {"title": "mine"}).unwrap()
    for owner in ("them", "us"):
        b.update("todos", "t1", {"owner": owner}).unwrap()
        b.push().unwrap()
        a.pull().unwrap()
    sync(a, b)

    assert (kept(a), kept(b)) == ([], [])
