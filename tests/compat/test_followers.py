"""lakesync.compat.follower_pulls: existing clients lose nothing, whatever their cursors do."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from lakesync.core.delta import Op, make_delta
from lakesync.core.merge import apply
from lakesync.core.messages import Push
from tests.compat.older import WAIT_MS_MAX
from tests.compat.world import (
    COLUMNS,
    GATEWAY,
    OMITTING,
    OTHER_RULES,
    OWNERS,
    RULES,
    TABLE,
    UNKNOWN,
    UNREADABLE,
    Direct,
    World,
    deltas_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lakesync.core.delta import Delta
    from tests.compat.older import OlderClient


@dataclass
class Story:
    """Two followers and a writer of ours, who do what chance says."""

    seed: int
    world: World = field(default_factory=World)
    rows: list[str] = field(default_factory=list)
    rules: tuple[dict[str, Any], ...] = (RULES, OTHER_RULES)

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.world.notes_seen = True
        clocks = [0, 0, -20_000, -300, 7_000, 60_000, 3_600_000]
        self.clients = [
            self.world.client("a", "x", ahead_ms=self.chance.choice(clocks)),
            self.world.client("b", "y", "z", ahead_ms=self.chance.choice(clocks)),
        ]
        for client in self.clients:
            assert isinstance(client.line, Direct)
            client.line.chance = self.chance

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.world.time.now_ms += self.chance.choice([1, 20, 50, 50, 3_000, 40_000])
            self.step()
            for client in self.clients:
                if self.chance.random() < 0.4:
                    client.sync()

    def step(self) -> None:
        kind = self.chance.choice(
            ["insert", "edit", "edit", "edit", "write", "write", "write", "delete", "bad", "rare"]
        )
        client = self.chance.choice(self.clients)
        if kind == "insert":
            client.insert(TABLE, self.new_row(), **self.values(COLUMNS))
        elif kind == "write":
            self.write()
        elif kind == "rare":
            self.chance.choice(
                [self.change_claims, self.change_rules, self.trim, client.restart, client.restart]
            )()
        elif kind == "bad":
            self.edit_badly(client)
        elif client.rows:
            table, row_id = self.chance.choice(sorted(client.rows))
            if kind == "edit":
                client.update(table, row_id, **self.values(self.chance.sample(COLUMNS, 2)))
            else:
                client.delete(table, row_id)

    def edit_badly(self, client: OlderClient) -> None:
        """Edit so that the gateway refuses it, alone or together with its neighbours."""
        fault = {self.chance.choice([UNKNOWN, UNREADABLE]): "x"}
        if client.rows and self.chance.random() < 0.5:
            client.update(*self.chance.choice(sorted(client.rows)), **fault)
        else:
            client.insert(TABLE, self.new_row(), **self.values(COLUMNS), **fault)

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
        back = [Op.INSERT] if self.world.delete_wins else []
        op = self.chance.choice([Op.UPDATE, Op.UPDATE, Op.DELETE, *back])
        changed = {} if op is Op.DELETE else self.values(self.chance.sample(COLUMNS, 2))
        row_id = self.chance.choice(self.rows)
        self.push(make_delta(op, TABLE, row_id, changed, client_id="w", hlc=hlc))

    def push(self, delta: Delta) -> None:
        self.world.pushes.push(GATEWAY, Push("w", ((0, delta),)))
        self.world.note_seen([delta.row_id])

    def change_claims(self) -> None:
        client = self.chance.choice(self.clients)
        teams = self.chance.sample(OWNERS, self.chance.randrange(3))
        self.world.claims[client.client_id] = {"sub": client.client_id, "teams": teams}
        self.world.note_seen(self.rows)

    def change_rules(self) -> None:
        if self.seed % 3:
            self.world.save_rules(self.chance.choice(self.rules))
            self.world.note_seen(self.rows)

    def trim(self) -> None:
        # What left its sight meanwhile would stay with a follower: see "not promised".
        if not self.seed % 3:
            self.world.trim()

    def settle(self) -> None:
        """Let every answer arrive, until no edit waits, not even by a clock that is far ahead."""
        for client in self.clients:
            assert isinstance(client.line, Direct)
            client.line.chance = None
        for number in range(30):
            self.world.time.now_ms += WAIT_MS_MAX + 1_000 if number < 15 else 3_600_000
            for client in self.clients:
                client.sync()
        assert not any(client.queue for client in self.clients)


@pytest.mark.law("F1", "F2", "F3", "F6")
@pytest.mark.parametrize("seed", [*range(60), 1061, 1071])
def test_follower_ends_with_exactly_its_visible_rows_whatever_happens(seed: int) -> None:
    """And every edit that was answered by 200 is in the gateway's rows."""
    ends_with_what_it_may_see(Story(seed))


@pytest.mark.law("F1", "F2", "F3", "F6", "F9")
@pytest.mark.parametrize("seed", range(60))
def test_follower_of_a_delete_wins_table_ends_with_exactly_its_visible_rows(seed: int) -> None:
    ends_with_what_it_may_see(Story(seed, World(delete_wins=True)))


@pytest.mark.law("F2", "F3", "V12")
@pytest.mark.parametrize("seed", [number for number in range(30) if number % 3])
def test_follower_is_never_sent_omitted_columns(seed: int) -> None:
    ends_with_what_it_may_see(Story(seed, rules=(RULES, OTHER_RULES, OMITTING, OMITTING)))


@pytest.mark.law("F1", "V5")
@pytest.mark.parametrize("rules", [RULES, OMITTING])
def test_refusal_names_only_its_own_delta(rules: dict[str, Any]) -> None:
    """Each names its own delta, however many there were before it in this process."""
    world = World()
    world.save_rules(rules)
    owner = world.client("a", "x")
    world.write(make_delta(Op.INSERT, TABLE, "r", {"owner": "z"}, client_id="w", hlc=1))
    taken = [
        make_delta(Op.UPDATE, TABLE, "r", {"state": "mine"}, client_id="a", hlc=owner.now())
        for _ in range(4)
    ]
    mine = [
        make_delta(Op.INSERT, TABLE, f"m{n}", {"owner": "x"}, client_id="a", hlc=owner.now())
        for n in range(4)
    ]
    line = owner.line
    assert isinstance(line, Direct)
    for number in range(4):
        line.push([*mine[:number], taken[number]])

    where = [error.field for error in line.refusals]
    if rules is OMITTING:
        assert where == [f"deltas[{number}].columns" for number in range(4)]
    else:
        assert where == [f"deltas[{number}]" for number in range(4)]


@pytest.mark.law("F3", "V4")
def test_follower_with_an_invented_cursor_learns_of_no_hidden_row() -> None:
    world = World()
    world.save_rules(RULES)
    first = world.buffer.heads(GATEWAY)["main"].commit
    for number, state in enumerate(["hidden", "open"]):
        columns = {"owner": "x", "state": state}
        world.write(
            make_delta(Op.INSERT, TABLE, f"r{number}", columns, client_id="w", hlc=number + 1)
        )
    world.save_rules(OTHER_RULES)
    world.client("a", "x")

    page = world.pull("a", first)

    assert {delta.row_id for delta in deltas_of(page)} == {"r1"}


@pytest.mark.law("F3", "V4")
@pytest.mark.parametrize("is_lost", [False, True])
def test_rows_inserted_after_a_rule_change_are_not_named_under_the_earlier_rules(
    *, is_lost: bool
) -> None:
    world = World()
    world.save_rules(RULES)
    client = world.client("a", "x")
    connector(world, Op.INSERT, "r0", owner="x", state="open")
    connector(world, Op.INSERT, "r1", owner="x", state="open")
    client.sync()
    if is_lost:  # so what it holds is known less exactly
        connector(world, Op.INSERT, "r2", owner="x", state="open")
        world.pull("a", client.cursor)

    world.save_rules(OTHER_RULES)
    connector(world, Op.UPDATE, "r1", state="hidden")
    connector(world, Op.INSERT, "later", owner="x", state="hidden")
    connector(world, Op.INSERT, "gone", owner="x", state="hidden")
    connector(world, Op.DELETE, "gone")

    named = set()
    for _ in range(4):
        named |= {delta.row_id for delta in deltas_of(world.pull("a", client.cursor))}
        client.sync()
    assert named == {"r0", "r1", *(["r2"] if is_lost else [])}
    assert {row_id for _, row_id in client.rows} == named - {"r1"}


def connector(world: World, op: Op, row_id: str, **columns: str) -> None:
    """Write as a connector, whom no rule concerns."""
    hlc = world.time.wall_clock() << 16
    world.write(make_delta(op, TABLE, row_id, columns, client_id="w", hlc=hlc), trusted=True)


def ends_with_what_it_may_see(story: Story) -> None:
    """Let a story happen, and hold what everybody has against what they should."""
    story.run(60)
    story.settle()

    for client in story.clients:
        for delta in client.acknowledged:
            state = story.world.state(delta.row_id)
            assert apply(state, delta) is state
    for client in story.clients:
        kept = {key: row for key, row in client.rows.items() if key not in client.dropped}
        wanted = story.world.visible(client.client_id, story.rows)
        assert kept == {key: row for key, row in wanted.items() if key not in client.dropped}
