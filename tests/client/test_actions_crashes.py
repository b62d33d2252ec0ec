"""Actions among edits, bad networks, wrong clocks, refusals and crashes: each is done once."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakesync.client import Client, Fault
from lakesync.client.storage.action_queue import RETRY_MS_MAX
from lakesync.errors import ActionFailed, SchemaMismatch, Unavailable
from tests.client.support.acting import Shop
from tests.client.support.crashes import Crash, CrashingConnection
from tests.client.support.world import World, check_sound, reopened

if TYPE_CHECKING:
    from collections.abc import Mapping


faults = st.lists(st.sampled_from(Fault), max_size=3)
steps = st.one_of(
    st.tuples(st.just("edit"), st.booleans()),
    st.tuples(st.just("act"), st.booleans()),
    st.tuples(st.just("act"), st.booleans()),
    st.tuples(st.just("push"), faults),
    st.tuples(st.just("send"), faults),
    st.tuples(st.just("sync"), faults),
    st.tuples(st.just("wait"), st.just(RETRY_MS_MAX)),
    st.tuples(st.just("fail"), st.sampled_from([Unavailable("busy"), ActionFailed("no")])),
    st.tuples(st.just("restart"), st.none()),
)


class Story:
    """A client that edits and acts; what an action must find is among its parameters."""

    def __init__(self, folder: Path, skew_ms: int) -> None:
        self.world = World(folder)
        self.world.gateway.judge = lambda delta: (
            SchemaMismatch("bad") if delta.row_id.startswith("bad") else None
        )
        self.shop = Shop(self.world, before=self._check)
        self.transport = self.shop.transport()
        self.skew_ms = skew_ms
        self.edits: list[str] = []
        self.asked: dict[str, bool] = {}
        """Ids of actions, and whether they wait for edits."""
        self.client = self.open()

    def open(self) -> Client:
        clock = self.world.clock
        return self.world.client(
            transport=self.transport, wall_clock=lambda: clock.ms + self.skew_ms
        )

    def _check(self, params: Mapping[str, Any]) -> None:
        """Prove that an action finds the edits that it waits for."""
        there = {delta.row_id for delta in self.world.deltas()}
        assert set(params["edits"]) <= there, "it came before an edit that it waits for"

    def step(self, what: str, detail: Any) -> None:
        client = self.client
        if what == "edit":
            row = f"{'bad' if detail and len(self.edits) % 3 == 0 else 'ok'}{len(self.edits)}"
            client.insert("t", row, {}).unwrap()
            self.edits.append(row)
        elif what == "act":
            set_aside = {entry.delta.row_id for entry in client.quarantined().unwrap()}
            edits = [row for row in self.edits if row not in set_aside] if detail else []
            params = {"order": len(self.asked), "edits": edits}
            queued = client.actions.run("shipping", "ship", params, after_edits=detail).unwrap()
            self.asked[queued.action_id] = detail
        elif what == "wait":
            self.world.clock.ms += detail
        elif what == "fail":
            self.shop.fails.append(detail)
        elif what == "restart":
            client.close()
            self.client = self.open()
        else:
            self.transport.faults.extend(detail)
            self._exchange(what)
            self.transport.faults.clear()

    def _exchange(self, what: str) -> None:
        if what == "push":
            self.client.push()
        elif what == "send":
            self.client.actions.send()
        else:
            self.client.sync()

    def end(self) -> None:
        self.shop.fails.clear()
        for _ in range(4):
            self.world.clock.ms += RETRY_MS_MAX
            self.client.sync()
        client = self.client
        assert client.actions.pending().unwrap() == []
        assert client.pending().unwrap() == []
        dead = {entry.action_id: entry for entry in client.actions.dead_letters().unwrap()}
        assert all(
            entry.code in {"EDIT_REFUSED", "ACTION_EXECUTION_ERROR"} for entry in dead.values()
        )
        for action_id, entry in dead.items():
            if entry.code == "EDIT_REFUSED":
                assert self.asked[action_id], "only what waits for edits is ended by one"
                assert any(row.startswith("bad") for row in entry.params["edits"])
        orders = [order for order, action_id in enumerate(self.asked) if action_id not in dead]
        assert sorted(map(int, map(str, self.shop.orders))) == orders, "each once"
        check_sound(client)
        self.world.close()


@pytest.mark.law("X11", "X12")
@given(st.lists(steps, max_size=14), st.sampled_from([0, 3_600_000, -3_600_000]))
def test_each_action_runs_once_and_after_the_edits_it_waits_for(
    story: list[tuple[str, Any]], skew_ms: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        played = Story(Path(folder), skew_ms)
        for step in story:
            played.step(*step)
        played.end()


class Life:
    """All that is done with actions, once each; ``promised`` are those that are on the disk."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.shop = Shop(world)
        self.transport = self.shop.transport()
        self.client: Client | None = None
        self.promised: list[str] = []
        self.discarded: set[str] = set()

    def live(self) -> None:
        self.client = client = self.world.client(
            transport=self.transport, connection_class=CrashingConnection
        )
        run = client.actions.run
        client.insert("t", "r1", {}).unwrap()
        self.promised.append(run("shipping", "ship", {"order": 1}).unwrap().action_id)
        self.promised.append(run("shipping", "ship", {"order": 2}).unwrap().action_id)
        with client.transaction() as tx:
            tx.insert("t", "r2", {}).unwrap()
            third = tx.run_action("shipping", "ship", {"order": 3}).unwrap()
        self.promised.append(third)
        client.push().unwrap()
        self.transport.faults += [Fault.LOSE_ANSWER]
        client.actions.send()
        self.shop.fails.append(ActionFailed("no"))
        self.promised.append(run("shipping", "ship", {"order": 4}).unwrap().action_id)
        client.sync()
        for entry in client.actions.dead_letters().unwrap():
            self.promised.append(client.actions.retry(entry.action_id).unwrap().action_id)
            self.promised.remove(entry.action_id)
        client.sync()


@pytest.mark.law("X11")
@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
def test_a_crash_at_any_statement_neither_repeats_nor_loses_an_action(
    tmp_path: Path, *, late: bool
) -> None:
    CrashingConnection.left = start = 1 << 60
    (tmp_path / "whole").mkdir()
    whole = Life(World(tmp_path / "whole"))
    whole.live()
    whole.world.close()
    count = start - CrashingConnection.left
    assert sorted(map(str, whole.shop.orders)) == ["1", "2", "3", "4"]
    CrashingConnection.late = late
    for number in range(1, count + 1):
        folder = tmp_path / str(number)
        folder.mkdir()
        _crash_at(number, Life(World(folder)))


def _crash_at(number: int, life: Life) -> None:
    CrashingConnection.left = number
    with suppress(Crash):
        life.live()
    if life.client is not None:
        life.client.close()
    CrashingConnection.left = 1 << 60
    life.shop.fails.clear()
    life.transport.faults.clear()
    client = life.world.client(transport=life.transport)
    there = {
        row["action_id"] for row in client.query("SELECT action_id FROM _lakesync_actions").unwrap()
    }
    # The last retry may have been committed without its caller hearing of it.
    missing = set(life.promised) - there
    assert len(missing) <= (1 if life.promised[3:] else 0), number
    for _ in range(2):
        client.sync().unwrap()
    orders = [str(order) for order in life.shop.orders]
    assert len(set(orders)) == len(orders), f"{number}: twice"
    assert client.actions.pending().unwrap() == []
    dead = [entry.params["order"] for entry in client.actions.dead_letters().unwrap()]
    assert sorted([*orders, *map(str, dead)])[: len(life.promised)] == [
        str(order) for order in range(1, len(life.promised) + 1)
    ], number
    check_sound(client)
    again = reopened(life.world, client, transport=life.transport)
    again.sync().unwrap()
    assert len(life.shop.orders) == len(orders)
    life.world.close()
