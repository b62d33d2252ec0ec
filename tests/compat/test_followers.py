"""lakesync.compat.followers: existing clients lose nothing, whatever their cursors do."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from lakesync.core.delta import Op, make_delta
from lakesync.core.messages import Push
from tests.compat.world import COLUMNS, GATEWAY, OTHER_RULES, OWNERS, RULES, TABLE, Direct, World

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lakesync.core.delta import Delta


@dataclass
class Story:
    """Two followers and a writer of ours, who do what chance says."""

    seed: int
    world: World = field(default_factory=World)
    rows: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.clients = [self.world.client("a", "x"), self.world.client("b", "y", "z")]
        for client in self.clients:
            assert isinstance(client.line, Direct)
            client.line.chance = self.chance

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.world.time.now_ms += self.chance.randrange(1, 50)
            self.step()
            for client in self.clients:
                if self.chance.random() < 0.4:
                    client.sync()

    def step(self) -> None:
        kind = self.chance.choice(
            ["insert", "edit", "edit", "edit", "write", "write", "write", "delete", "rare"]
        )
        client = self.chance.choice(self.clients)
        if kind == "insert":
            client.insert(TABLE, self.new_row(), **self.values(COLUMNS))
        elif kind == "write":
            self.write()
        elif kind == "rare":
            self.chance.choice([self.change_claims, self.change_rules, client.restart])()
        elif client.rows:
            table, row_id = self.chance.choice(sorted(client.rows))
            if kind == "edit":
                client.update(table, row_id, **self.values(self.chance.sample(COLUMNS, 2)))
            else:
                client.delete(table, row_id)

    def new_row(self) -> str:
        self.rows.append(f"r{len(self.rows)}")
        return self.rows[-1]

    def values(self, names: Iterable[str]) -> dict[str, str]:
        made = {
            "owner": self.chance.choice(OWNERS),
            "title": f"t{self.chance.randrange(1000)}",
            "state": self.chance.choice(["open", "hidden"]),
        }
        return {name: made[name] for name in names}

    def write(self) -> None:
        """Write as one of our own clients, sometimes what was made long ago."""
        ago_ms = self.chance.choice([0, 0, 20, 500])
        hlc = (self.world.time.wall_clock() - ago_ms) << 16
        if not self.rows or self.chance.random() < 0.3:
            columns = self.values(COLUMNS)
            self.push(make_delta(Op.INSERT, TABLE, self.new_row(), columns, client_id="w", hlc=hlc))
            return
        op = self.chance.choice([Op.UPDATE, Op.UPDATE, Op.DELETE])
        changed = {} if op is Op.DELETE else self.values(self.chance.sample(COLUMNS, 2))
        row_id = self.chance.choice(self.rows)
        self.push(make_delta(op, TABLE, row_id, changed, client_id="w", hlc=hlc))

    def push(self, delta: Delta) -> None:
        self.world.pushes.push(GATEWAY, Push("w", ((0, delta),))).unwrap()

    def change_claims(self) -> None:
        client = self.chance.choice(self.clients)
        teams = self.chance.sample(OWNERS, self.chance.randrange(3))
        self.world.claims[client.client_id] = {"sub": client.client_id, "teams": teams}

    def change_rules(self) -> None:
        if self.seed % 3:
            self.world.save_rules(self.chance.choice([RULES, OTHER_RULES]))

    def settle(self) -> None:
        for client in self.clients:
            assert isinstance(client.line, Direct)
            client.line.chance = None
        for _ in range(12):
            for client in self.clients:
                client.sync()
        assert not any(client.queue for client in self.clients)


@pytest.mark.law("F1", "F2", "F3")
@pytest.mark.parametrize("seed", range(60))
def test_whatever_happens_a_follower_ends_with_what_it_may_see(seed: int) -> None:
    story = Story(seed)
    story.run(60)
    story.settle()

    for client in story.clients:
        kept = {key: row for key, row in client.rows.items() if key not in client.dropped}
        wanted = story.world.visible(client.client_id, story.rows)
        assert kept == {key: row for key, row in wanted.items() if key not in client.dropped}
