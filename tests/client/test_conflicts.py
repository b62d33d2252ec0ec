"""Conflicts under rules, and as they are kept until the app settles them."""

from __future__ import annotations

import queue
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from lakesync.client import LostWrite
from tests.client.test_sync_rules import MINE, World, sync

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from lakesync.client import Client

ALL = {"column": "owner", "op": "eq", "value": "us"}


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


def told(lost: LostWrite) -> LostWrite:
    return replace(lost, own_stamp=0, other_stamp=0, id=0)


def kept(client: Client) -> list[LostWrite]:
    return [told(lost) for lost in client.conflicts().unwrap()]


LOST = LostWrite("todos", "t1", "title", "mine", "theirs", "b", base="old")
WON = replace(LOST, won=True)


@pytest.mark.law("K27")
@pytest.mark.parametrize("first", ["pull", "push"])
def test_the_loser_is_told_with_rules_as_without(two: tuple[Client, Client], first: str) -> None:
    a, b = two
    heard: queue.Queue[LostWrite] = queue.Queue()
    a.on_conflict(heard.put)
    a.update("todos", "t1", {"title": "mine"}).unwrap()
    b.update("todos", "t1", {"title": "theirs"}).unwrap()
    b.sync().unwrap()
    getattr(a, first)().unwrap()
    a.sync().unwrap()
    sync(b, a)

    assert told(heard.get(timeout=10.0)) == LOST
    assert (kept(a), kept(b)) == ([LOST], [])


@pytest.mark.law("K27")
@pytest.mark.parametrize("first", ["pull", "push"])
def test_the_winner_is_told_where_the_loser_has_read_on(
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


@pytest.mark.law("K27")
def test_who_overwrites_what_he_has_read_is_told_nothing(two: tuple[Client, Client]) -> None:
    a, b = two
    b.update("todos", "t1", {"title": "theirs"}).unwrap()
    sync(b, a)
    a.update("todos", "t1", {"title": "mine"}).unwrap()
    a.push().unwrap()
    b.pull().unwrap()
    b.update("todos", "t1", {"title": "again"}).unwrap()
    sync(b, a, b)

    assert (kept(a), kept(b)) == ([], [])
