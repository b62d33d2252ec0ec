"""Conflicts: an app hears which of its values lost to a write that did not know them."""

from __future__ import annotations

import asyncio
import queue
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakesync.client import AsyncClient, Client, LostWrite
from lakesync.client.storage.app_table import AppTable
from lakesync.client.storage.own_writes import LostWrites
from lakesync.client.storage.stored_rows import StoredRow
from lakesync.core.merge import EMPTY, fold
from tests.support.builders import delete, insert, update
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from lakesync.client.storage.file import ClientFile
    from lakesync.core.delta import Delta
    from tests.client.support.world import World

SOON_S = PATIENCE_S
NEVER_S = 0.3
ME = "a"
ROW = ("todos", "r1")


def reported(lost: LostWrite) -> LostWrite:
    """Return what the app is told of a lost write, without its stamps and its id."""
    return replace(lost, own_stamp=0, other_stamp=0, id=0)


class Both:
    """Two clients that have the same row, and the conflicts that the first is called with."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.a, self.b = world.client("a", gather_ms=0), world.client("b", gather_ms=0)
        self.lost: queue.Queue[LostWrite] = queue.Queue()
        self.calls = 0
        self.b.insert("todos", "r1", {"title": "old", "done": False}).unwrap()
        for client in (self.b, self.a):
            client.sync().unwrap()
        self.a.on_conflict(self.lost.put)

    def later(self, client: Client, **columns: Any) -> None:
        """Have a client edit the row, later than all edits so far."""
        self.world.clock.ms += 10
        client.update("todos", "r1", columns).unwrap()

    def heard(self) -> LostWrite:
        lost = self.lost.get(timeout=SOON_S)
        self.calls += 1
        return lost

    def nothing(self) -> None:
        """No conflict beyond those that it was called with: none is in the file either."""
        assert len(self.a.conflicts().unwrap()) == self.calls
        with pytest.raises(queue.Empty):
            self.lost.get(timeout=NEVER_S)


@pytest.fixture
def two(both: World) -> Both:
    return Both(both)


@pytest.mark.law("K27")
@pytest.mark.parametrize("first", ["pull", "push"])
def test_an_edit_that_lost_to_a_concurrent_edit_is_reported(two: Both, first: str) -> None:
    two.later(two.a, title="mine", done=True)
    two.later(two.b, title="theirs")
    two.b.push().unwrap()
    getattr(two.a, first)().unwrap()
    two.a.sync().unwrap()
    assert reported(two.heard()) == LostWrite(
        "todos", "r1", "title", "mine", "theirs", "b", base="old"
    )
    assert two.a.get("todos", "r1").unwrap() == {"title": "theirs", "done": True}
    two.a.sync().unwrap()
    two.nothing()


@pytest.mark.law("K27")
def test_an_edit_that_lost_to_another_clients_delete_is_reported(two: Both) -> None:
    two.later(two.a, title="mine")
    two.world.clock.ms += 10
    two.b.delete("todos", "r1").unwrap()
    two.b.push().unwrap()
    two.a.sync().unwrap()
    assert reported(two.heard()) == LostWrite(
        "todos", "r1", "title", "mine", None, "b", deleted=True, base="old"
    )


@pytest.mark.law("K27")
def test_a_value_overwritten_by_a_client_that_had_read_it_is_no_conflict(two: Both) -> None:
    two.later(two.a, title="mine")
    two.a.push().unwrap()
    two.b.sync().unwrap()
    two.later(two.b, title="theirs")  # in one page with what it replaces
    two.b.push().unwrap()
    two.a.sync().unwrap()
    assert two.a.get("todos", "r1").unwrap()["title"] == "theirs"  # type: ignore[index]
    two.nothing()


@pytest.mark.law("K27")
def test_concurrent_edits_with_equal_values_or_of_other_columns_are_no_conflict(two: Both) -> None:
    two.later(two.a, title="same")
    two.later(two.b, title="same", done=True)
    two.b.push().unwrap()
    two.a.sync().unwrap()
    assert two.a.get("todos", "r1").unwrap() == {"title": "same", "done": True}
    two.nothing()


@pytest.mark.law("K27")
@pytest.mark.parametrize("first", ["pull", "push"])
def test_the_client_that_overwrote_an_unread_value_is_notified_if_its_author_cannot_be(
    two: Both, first: str
) -> None:
    two.later(two.b, title="theirs")
    two.later(two.a, title="mine", done=True)
    two.b.sync().unwrap()
    getattr(two.a, first)().unwrap()
    two.a.sync().unwrap()
    assert reported(two.heard()) == LostWrite(
        "todos", "r1", "title", "mine", "theirs", "b", base="old", won=True
    )
    two.a.sync().unwrap()
    two.b.sync().unwrap()
    two.nothing()


@pytest.mark.law("K27")
def test_the_client_that_deleted_a_row_with_an_unread_value_is_notified(two: Both) -> None:
    two.later(two.b, title="theirs")
    two.world.clock.ms += 10
    two.a.delete("todos", "r1").unwrap()
    two.b.push().unwrap()
    two.a.sync().unwrap()
    assert reported(two.heard()) == LostWrite(
        "todos", "r1", "title", None, "theirs", "b", deleted=True, base="old", won=True
    )
    two.nothing()


@pytest.mark.law("K27")
def test_a_conflict_callback_for_other_tables_or_closed_is_not_called(two: Both) -> None:
    others: queue.Queue[LostWrite] = queue.Queue()
    two.a.on_conflict(others.put, ["Notes"])
    with two.a.on_conflict(others.put):
        pass
    two.later(two.a, title="mine")
    two.later(two.b, title="theirs")
    two.b.push().unwrap()
    two.a.sync().unwrap()
    two.heard()
    assert others.empty()


def test_an_async_client_is_notified_of_a_conflict_in_its_event_loop(two: Both) -> None:
    two.a.close()

    async def story() -> LostWrite:
        lost: asyncio.Queue[LostWrite] = asyncio.Queue()
        async with AsyncClient(
            two.world.folder / "a.db", client_id="a", transport=two.world.transport(),
            wall_clock=two.world.clock, gather_ms=0,
        ) as client:  # fmt: skip
            client.on_conflict(lost.put)
            two.world.clock.ms += 10
            (await client.update("todos", "r1", {"title": "mine"})).unwrap()
            two.later(two.b, title="theirs")
            two.b.push().unwrap()
            (await client.sync()).unwrap()
            return await asyncio.wait_for(lost.get(), SOON_S)

    assert asyncio.run(story()).own == "mine"


writes = st.lists(
    st.builds(
        lambda client, at, value: (client, at, value),
        st.sampled_from(["a", "b", "c"]),
        st.integers(1, 9),
        st.integers(0, 2),
    ),
    min_size=1, max_size=6, unique_by=lambda write: write[:2],
)  # fmt: skip


@pytest.mark.law("K27")
@given(
    page=writes,
    at=st.integers(1, 9),
    value=st.integers(0, 2),
    deletes=st.booleans(),
    delete_wins=st.booleans(),
)
def test_a_reported_conflict_names_the_write_that_the_row_shows_instead(
    *, page: list[tuple[str, int, int]], at: int, value: int, deletes: bool, delete_wins: bool
) -> None:
    """Whatever a page brings: a report names a value that is gone, and who is to thank for it."""
    mine = (insert if delete_wins else update)(client=ME, at=at, n=value)
    deltas = [
        delete(client=client, at=stamp) if deletes and n == 0
        else update(client=client, at=stamp, n=n)
        for client, stamp, n in page
    ]  # fmt: skip
    before = fold([mine], EMPTY)
    after = fold(deltas, before)
    table = AppTable(1, "todos", "todos", delete_wins=delete_wins)
    lost = LostWrites(cast("ClientFile", SimpleNamespace(client_id=ME)))
    lost.compare(table, "r1", StoredRow(before, EMPTY, 1), after, deltas, 5)
    for clash in lost._clashes:
        if clash.won:
            assert (clash.other_hlc, clash.other_client) in set(map(stamped, deltas))
            assert clash.own != clash.other
            assert clash.deleted or clash.own_hlc >= clash.other_hlc
            continue
        assert clash.own == str(value).encode()
        assert clash.other_client != ME
        if clash.deleted:
            assert after.deleted >= mine.hlc
        else:
            assert after.columns["n"][:2] > (mine.hlc, ME)
            assert after.columns["n"] == (clash.other_hlc, clash.other_client, clash.other)
            assert clash.other != clash.own


def stamped(delta: Delta) -> tuple[int, str]:
    return delta.hlc, delta.client_id
