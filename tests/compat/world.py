"""A gateway in memory and the existing clients that follow it, on lines where answers get lost."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lakesync.buffer.memory_buffer import MemoryBuffer
from lakesync.checkpoint.store import Checkpoints
from lakesync.compat.follower_deltas import FollowingPushes
from lakesync.compat.follower_pulls import CheckpointService, FollowingPulls
from lakesync.core.clock import HybridLogicalClock
from lakesync.core.delta import parse
from lakesync.core.merge import view
from lakesync.core.messages import PAGE_BYTES_MAX, Pull, Push, RefusedDelta
from lakesync.errors import LakeSyncError, NotFound, ValidationFailed
from lakesync.ports import FlushState
from lakesync.wire.records import decode_records, decode_row_state
from tests.compat.older import OlderClient
from tests.support.builders import WALL_MS
from tests.support.gateways import GivenTime, administrator, puller, pusher
from tests.support.lake import Objects

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable

    from lakesync.core.clock import Stamp
    from lakesync.core.delta import Delta
    from lakesync.core.merge import RowState
    from lakesync.core.messages import PullPage

GATEWAY = "g1"
TABLE = "todos"
OWNERS = ("x", "y", "z")
COLUMNS = ("owner", "title", "state")
UNKNOWN = "unknown"
"""A column that the schema does not know."""
UNREADABLE = "unreadable"
"""A column whose delta does not survive the wire."""
MINE = {"column": "owner", "op": "in", "value": "jwt:teams"}
SHOWN = {"column": "state", "op": "neq", "value": "hidden"}
RULES = {"version": 1, "buckets": [{"name": "mine", "tables": [TABLE], "filters": [MINE]}]}
OTHER_RULES = {
    "version": 1,
    "buckets": [{"name": "mine", "tables": [TABLE], "filters": [MINE, SHOWN]}],
}
OMITTING = {
    **RULES,
    "omit": [
        {
            "tables": [TABLE],
            "columns": ["state"],
            "except": [{"claim": "sub", "op": "eq", "value": "b"}],
        }
    ],
}
"""Rules that leave a column out for the first of two clients."""


@dataclass
class World:
    """A gateway in memory, its rules, and a clock that is given."""

    buffer: MemoryBuffer = field(default_factory=MemoryBuffer)
    time: GivenTime = field(default_factory=lambda: GivenTime(WALL_MS))
    claims: dict[str, dict[str, Any]] = field(default_factory=dict)
    rules: dict[str, Any] = field(default_factory=dict)
    delete_wins: bool = False
    """What the schema of the table says."""
    notes_seen: bool = False
    """Note who may know of which rows, and hold every page against that."""
    seen: dict[str, set[str]] = field(default_factory=dict)
    """By client, the rows of which it may know: rules that it had showed what they were by then."""
    past: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """What each row has been."""

    def __post_init__(self) -> None:
        self.pushes = FollowingPushes(pusher(self.buffer, time_=self.time), self.buffer)
        self.checkpoints = CheckpointService(self.buffer, Checkpoints(Objects()))
        self.pulls = FollowingPulls(
            puller(self.buffer, time_=self.time), self.buffer, wall_clock=self.time.wall_clock
        )
        columns = [{"name": name, "type": "string"} for name in COLUMNS]
        administrator(self.buffer, time_=self.time).register_schema(
            GATEWAY, {"table": TABLE, "columns": columns, "deleteWins": self.delete_wins}
        )

    def save_rules(self, rules: dict[str, Any]) -> None:
        self.rules = rules
        administrator(self.buffer, time_=self.time).save_rules(GATEWAY, rules)

    def client(self, name: str, *teams: str, ahead_ms: int = 0) -> OlderClient:
        """Return a device whose clock is so far ahead."""
        self.claims[name] = {"sub": name, "teams": list(teams)}
        clock = HybridLogicalClock()
        line = Direct(self, name)
        return OlderClient(name, line, lambda: clock.now(self.time.wall_clock() + ahead_ms))

    def write(self, *deltas: Delta, trusted: bool = False) -> None:
        """Push as one of our own clients does, or as a connector."""
        self.time.now_ms += 1
        push = Push(deltas[0].client_id, tuple(enumerate(deltas)), trusted=trusted)
        assert not self.pushes.push(GATEWAY, push).outcomes

    def trim(self) -> None:
        """Trim the log, as if all of it were flushed and old."""
        self.time.now_ms += 1
        top = self.buffer.heads(GATEWAY)["main"].commit
        state = self.buffer.flush_state(GATEWAY)
        assert self.buffer.save_flush_state(GATEWAY, state, FlushState(top))
        self.buffer.save_flushed_table(GATEWAY, TABLE, top)
        self.buffer.raise_horizon(GATEWAY, top)

    def pull(
        self, client_id: str, since: Stamp, limit: int = 1_000, bytes_max: int = PAGE_BYTES_MAX
    ) -> PullPage:
        asked = Pull(
            client_id, since, limit, claims=self.claims[client_id], own_cursor=False,
            bytes_max=bytes_max,
        )  # fmt: skip
        return self.pulls.pull(GATEWAY, asked)

    def state(self, row_id: str) -> RowState:
        stored = self.buffer.rows(GATEWAY, [(TABLE, row_id)])
        return decode_row_state(stored[TABLE, row_id].state)

    def rows(self, row_ids: Iterable[str]) -> dict[tuple[str, str], dict[str, Any]]:
        """Return the rows that exist, whoever sees them, said in other words than the product's."""
        stored_rows = self.buffer.rows(GATEWAY, [(TABLE, row_id) for row_id in row_ids])
        states = {key: decode_row_state(stored.state) for key, stored in stored_rows.items()}
        views = {
            key: None if self.delete_wins and not state.alive else view(state)
            for key, state in states.items()
        }
        return {
            key: {name: parse(value) for name, value in row.items()}
            for key, row in views.items()
            if row is not None
        }

    def sees(self, client_id: str, row: dict[str, Any]) -> bool:
        hides = self.rules is OTHER_RULES
        is_mine = row.get("owner") in self.claims[client_id]["teams"]
        return not self.rules or (
            is_mine and (not hides or row.get("state") not in {None, "hidden"})
        )

    def visible(self, client_id: str, row_ids: list[str]) -> dict[tuple[str, str], dict[str, Any]]:
        rows = self.rows(row_ids)
        seen = {key: row for key, row in rows.items() if self.sees(client_id, row)}
        if self.rules is not OMITTING or client_id == "b":
            return seen
        return {
            key: {name: value for name, value in row.items() if name != "state"}
            for key, row in seen.items()
        }

    def note_seen(self, row_ids: Iterable[str]) -> None:
        """Note who may know of rows, after a change of them, or of rules or claims."""
        if not self.notes_seen:
            return
        for (_, row_id), row in self.rows(row_ids).items():
            self.past.setdefault(row_id, []).append(row)
        for client in self.claims:
            known = {
                row_id
                for row_id in row_ids
                if not self.rules
                or any(self.sees(client, row) for row in self.past.get(row_id, []))
            }
            self.seen.setdefault(client, set()).update(known)


@dataclass
class Direct:
    """A line without a network, on which answers get lost."""

    world: World
    client_id: str
    chance: random.Random | None = None
    refusals: list[LakeSyncError] = field(default_factory=list)
    pushed: set[str] = field(default_factory=set)
    """Rows that it wrote, or tried to."""

    def now_ms(self) -> int:
        return self.world.time.wall_clock()

    def checkpoint(self) -> tuple[list[Delta], Stamp] | None:
        asked = Pull(self.client_id, claims=self.world.claims[self.client_id], own_cursor=False)
        try:
            whole = self.world.checkpoints.whole(GATEWAY, asked)
        except NotFound:
            return None
        runs = [decode_records(frame[4:]) for frame in whole.frames]
        return [delta for run in runs for delta in run], whole.since

    def pull(self, since: Stamp, limit: int, bytes_max: int) -> tuple[list[Delta], Stamp] | None:
        self.world.time.now_ms += 1
        page = self.world.pull(self.client_id, since, limit, bytes_max)
        if self.world.rules is OMITTING and self.client_id == "a":
            sent = [name for delta in deltas_of(page) for name, _ in delta.columns]
            assert "state" not in sent, "what is left out is sent to nobody"
        named = {delta.row_id for delta in deltas_of(page)}
        unseen = named - self.world.seen.get(self.client_id, named) - self.pushed
        assert not unseen, "of a row that it never saw it learns nothing"
        return None if self._loses() else (deltas_of(page), page.cursor)

    def _loses(self) -> bool:
        return self.chance is not None and self.chance.random() < 0.25

    def push(self, deltas: list[Delta]) -> Stamp | None:
        self.world.time.now_ms += 1
        numbered = list(enumerate(deltas))
        self.pushed |= {delta.row_id for delta in deltas}
        broken = [item for item in numbered if UNREADABLE in dict(item[1].columns)]
        push = Push(
            self.client_id,
            tuple(item for item in numbered if item not in broken),
            claims=self.world.claims[self.client_id],
            own_cursor=False,
            unreadable=tuple(
                RefusedDelta(index, ValidationFailed("broken"), row=(delta.table, delta.row_id))
                for index, delta in broken
            ),
        )
        try:
            receipt = self.world.pushes.push(GATEWAY, push)
        except LakeSyncError as error:
            self.refusals.append(error)
            return None
        finally:
            times = Counter(delta.row_id for delta in deltas)
            self.world.note_seen([*times])
            within_one_commit = {row_id for row_id, number in times.items() if number > 1}
            for seen in self.world.seen.values():
                seen.update(within_one_commit)
        if self._loses():
            return None
        assert not any(outcome.error for outcome in receipt.outcomes)
        return receipt.server_hlc


def deltas_of(page: PullPage) -> list[Delta]:
    return [delta for run in page.records for delta in decode_records(run)]
