"""A crash between any two statements, of any operation, loses no edit and doubles none."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lakesync.client import Client, Fault
from lakesync.core.delta import Op, make_delta
from lakesync.core.messages import Push
from tests.client.support.crashes import Crash, CrashingConnection
from tests.client.support.gateways import GATEWAY
from tests.client.support.world import World, check_sound, rows_of
from tests.support.builders import at_ms

if TYPE_CHECKING:
    from lakesync.core.delta import Delta

ROOT = Path(__file__).parents[2]
CHILD = ROOT / "tests" / "client" / "support" / "child.py"


class Life:
    """Everything a client does, once each; ``promised`` is what it was told is durable."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.promised: list[Delta] = []
        self.transport = world.transport()
        self.client: Client | None = None
        world.gateway.only_text_in("strict")
        theirs: list[tuple[Op, str, dict[str, object]]] = [
            (Op.INSERT, "t1", {"title": "theirs", "extra": 1}),
            (Op.INSERT, "t5", {"title": "theirs"}),
            (Op.DELETE, "t4", {}),
        ]
        deltas = [
            make_delta(op, "todos", row, columns, client_id="other", hlc=at_ms(-9, place))
            for place, (op, row, columns) in enumerate(theirs)
        ]
        for delta in deltas:
            world.gateway.push(GATEWAY, Push("other", ((0, delta),)))

    def live(self) -> None:
        """Open the file and do it all; may be cut anywhere."""
        world = self.world
        self.client = client = world.client(
            transport=self.transport, connection_class=CrashingConnection, page_deltas=1
        )
        self.promised.append(client.insert("todos", "t1", {"title": "x", "done": False}).unwrap())
        self.promised.append(client.insert("strict", "s1", {"title": 7}).unwrap())
        with client.transaction() as edits:
            pair = [
                edits.update("todos", "t1", {"n": 1}).unwrap(),
                edits.insert("todos", "t2", {"n": 2}).unwrap(),
            ]
        self.promised += pair
        self.transport.faults += [Fault.LOSE_ANSWER]
        client.push()
        self.promised.append(client.update("todos", "t1", {"n": 3}).unwrap())
        client.sync()
        self.promised.append(client.delete("todos", "t2").unwrap())
        client.declare("todos", {"n": "integer"}, indexes=[["n"]]).unwrap()
        client.sync()

    def end(self) -> None:
        """Close what is open, as the end of a process does."""
        if self.client is not None:
            self.client.close()


def statements_of_a_life(folder: Path) -> int:
    """Count the statements of a life that is not cut."""
    world = World(folder)
    CrashingConnection.left = start = 1 << 60
    life = Life(world)
    life.live()
    world.close()
    return start - CrashingConnection.left


@pytest.mark.law("K2")
@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
def test_a_crash_at_any_statement_neither_loses_nor_duplicates_an_edit(
    tmp_path: Path, *, late: bool
) -> None:
    count = statements_of_a_life(tmp_path)
    assert count > 100
    CrashingConnection.late = late
    for number in range(1, count + 1):
        folder = tmp_path / str(number)
        folder.mkdir()
        _crash_at(number, World(folder))


def _crash_at(number: int, world: World) -> None:
    life = Life(world)
    CrashingConnection.left = number
    with suppress(Crash):
        life.live()
    life.end()
    CrashingConnection.left = 1 << 60

    client = world.client(transport=life.transport)
    check_sound(client)
    kept = client.pending().unwrap() + client.quarantined().unwrap()
    kept_ids = {entry.delta.delta_id for entry in kept} | {d.delta_id for d in world.deltas()}
    assert {delta.delta_id for delta in life.promised} <= kept_ids, number
    for _ in range(3):
        client.sync()
    check_sound(client)
    assert client.pending().unwrap() == [], number
    assert max(Counter(d.delta_id for d in world.deltas()).values()) == 1, number
    for entry in client.quarantined().unwrap():
        client.discard(entry.delta.delta_id).unwrap()
    assert rows_of(client) == world.rows(), number
    pairs = [d for d in world.deltas() if d.columns in ((("n", b"1"),), (("n", b"2"),))]
    assert len(pairs) in {0, 2}, number  # a local transaction is whole, there too
    world.close()


def child(path: Path, statements: int) -> subprocess.Popen[str]:
    """Start a process that edits a file until it dies."""
    paths = os.pathsep.join([str(ROOT), str(ROOT / "layers" / "lakesync" / "python")])
    return subprocess.Popen(
        [sys.executable, str(CHILD), str(path), str(statements)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": paths},
    )


def check_survivor(world: World, printed: list[str]) -> None:
    """Prove that a dead process's file holds every edit that it was told is durable."""
    client = world.client("child")
    ids = [entry.delta.delta_id for entry in client.pending().unwrap()]
    assert set(printed) <= set(ids)
    assert len(ids) == len(set(ids))
    check_sound(client)
    pair = client.get("todos", "pair").unwrap() or {}
    assert pair.get("left") == (client.get("other", "pair").unwrap() or {}).get("right")
    client.sync().unwrap()
    assert rows_of(client) == world.rows()


@pytest.mark.law("K2")
def test_a_process_killed_while_editing_loses_no_acknowledged_edit(world: World) -> None:
    with child(world.folder / "child.db", -1) as process:
        assert process.stdout is not None
        printed = [process.stdout.readline().strip() for _ in range(200)]
        process.send_signal(signal.SIGKILL)
        rest = process.stdout.read().split("\n")
    # The last line may have been cut short by the end of the process.
    check_survivor(world, printed + [line for line in rest if len(line) == 64])


@pytest.mark.law("K2")
@pytest.mark.parametrize("statements", [40, 61, 83, 104, 130])
def test_a_process_that_exits_between_two_statements_loses_no_acknowledged_edit(
    world: World, statements: int
) -> None:
    with child(world.folder / "child.db", statements) as process:
        assert process.stdout is not None
        printed = process.stdout.read().split()
    assert process.returncode == 7
    check_survivor(world, printed)
