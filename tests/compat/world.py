"""A gateway in memory and the existing clients that follow it, on lines where answers get lost."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lakesync.buffer.memory import MemoryBuffer
from lakesync.compat.followers import FollowingPulls, FollowingPushes
from lakesync.core.clock import HybridLogicalClock
from lakesync.core.merge import view
from lakesync.core.messages import Pull, Push
from lakesync.core.values import parse
from lakesync.wire.records import decode_records
from lakesync.wire.row_state import decode_row_state
from tests.compat.older import OlderClient
from tests.support.builders import WALL_MS
from tests.support.gateways import GivenTime, administrator, puller, pusher

if TYPE_CHECKING:
    import random

    from lakesync.core.clock import Stamp
    from lakesync.core.delta import Delta
    from lakesync.core.messages import PullPage

GATEWAY = "g1"
TABLE = "todos"
OWNERS = ("x", "y", "z")
COLUMNS = ("owner", "title", "state")
MINE = {"column": "owner", "op": "in", "value": "jwt:teams"}
SHOWN = {"column": "state", "op": "neq", "value": "hidden"}
RULES = {"version": 1, "buckets": [{"name": "mine", "tables": [TABLE], "filters": [MINE]}]}
OTHER_RULES = {
    "version": 1,
    "buckets": [{"name": "mine", "tables": [TABLE], "filters": [MINE, SHOWN]}],
}


@dataclass
class World:
    """A gateway in memory, its rules, and a clock that is given."""

    buffer: MemoryBuffer = field(default_factory=MemoryBuffer)
    time: GivenTime = field(default_factory=lambda: GivenTime(WALL_MS))
    claims: dict[str, dict[str, Any]] = field(default_factory=dict)
    rules: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.pushes = FollowingPushes(pusher(self.buffer, time_=self.time), self.buffer)
        self.pulls = FollowingPulls(puller(self.buffer, time_=self.time), self.buffer)
        columns = [{"name": name, "type": "string"} for name in COLUMNS]
        administrator(self.buffer, time_=self.time).register_schema(
            GATEWAY, {"table": TABLE, "columns": columns}
        ).unwrap()

    def save_rules(self, rules: dict[str, Any]) -> None:
        self.rules = rules
        administrator(self.buffer, time_=self.time).save_rules(GATEWAY, rules).unwrap()

    def client(self, name: str, *teams: str) -> OlderClient:
        self.claims[name] = {"sub": name, "teams": list(teams)}
        clock = HybridLogicalClock()
        return OlderClient(name, Direct(self, name), lambda: clock.now(self.time.wall_clock()))

    def write(self, *deltas: Delta) -> None:
        """Push as one of our own clients does."""
        self.time.now_ms += 1
        push = Push(deltas[0].client_id, tuple(enumerate(deltas)))
        assert not self.pushes.push(GATEWAY, push).unwrap().outcomes

    def pull(self, client_id: str, since: Stamp, limit: int = 1_000) -> PullPage:
        """Pull as a follower does."""
        asked = Pull(client_id, since, limit, claims=self.claims[client_id], own_cursor=False)
        return self.pulls.pull(GATEWAY, asked).unwrap()

    def visible(self, client_id: str, row_ids: list[str]) -> dict[tuple[str, str], dict[str, Any]]:
        """Give what a client may see, said in other words than the product's."""
        held = self.buffer.rows(GATEWAY, [(TABLE, row_id) for row_id in row_ids])
        rows = {key: view(decode_row_state(stored.state)) for key, stored in held.items()}
        found = {
            key: {name: parse(value) for name, value in row.items()}
            for key, row in rows.items()
            if row is not None
        }
        if not self.rules:
            return found
        teams = self.claims[client_id]["teams"]
        hides = self.rules is OTHER_RULES
        return {
            key: row
            for key, row in found.items()
            if row.get("owner") in teams and (not hides or row.get("state") not in {None, "hidden"})
        }


@dataclass
class Direct:
    """A line without a network, on which answers get lost."""

    world: World
    client_id: str
    chance: random.Random | None = None
    lost: bool = False
    asked: list[Stamp] = field(default_factory=list)

    def pull(self, since: Stamp, limit: int) -> tuple[list[Delta], Stamp] | None:
        self.world.time.now_ms += 1
        self.asked.append(since)
        page = self.world.pull(self.client_id, since, limit)
        # Never two in a row: see the law.
        self.lost = not self.lost and self.chance is not None and self.chance.random() < 0.25
        return None if self.lost else (deltas_of(page), page.cursor)

    def push(self, deltas: list[Delta]) -> Stamp | None:
        self.world.time.now_ms += 1
        push = Push(
            self.client_id, tuple(enumerate(deltas)), claims=self.world.claims[self.client_id],
            own_cursor=False,
        )  # fmt: skip
        receipt = self.world.pushes.push(GATEWAY, push).unwrap()
        if self.chance is not None and self.chance.random() < 0.25:
            return None
        return receipt.server_hlc


def deltas_of(page: PullPage) -> list[Delta]:
    return [delta for run in page.records for delta in decode_records(run)]
