"""Laws of commits and events: any interleaving, held against a model that keeps what was pushed."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from lakesync.buffer.memory_buffer import MemoryBuffer
from lakesync.core.clock import STAMP_MAX, stamp
from lakesync.core.delta import CHANGES, Op, make_delta
from lakesync.core.merge import EMPTY, apply, view
from lakesync.core.messages import OutcomeKind, Pull
from lakesync.errors import LakeSyncError
from lakesync.log.lanes import IDLE_MS, Limits, close_idle
from lakesync.wire.records import decode_row_state
from tests.support.builders import WALL_MS, at_ms, push
from tests.support.gateways import GivenTime, administrator, deltas_of, pulled, puller, pusher
from tests.support.oracle import expected_row

if TYPE_CHECKING:
    from lakesync.core.delta import Delta
    from lakesync.core.merge import RowState
    from lakesync.core.messages import PushReceipt

GATEWAY = "g"
CLIENTS = ("a", "b", "\u00e9")
SMALL = Limits(commit_items_max=8, entry_bytes_max=4_000, commit_rows_bytes_max=900)
"""So small that pushes are cut, and rows do not fit one commit."""

stamps = st.integers(0, 12).map(at_ms)
row_ids = st.sampled_from(["r1", "r2", "r3", "|"])
values = st.sampled_from([None, 0, "x" * 300, "y"])
clients = st.sampled_from(CLIENTS)


@st.composite
def edits(draw: st.DrawFn) -> Delta:
    op = draw(st.sampled_from(CHANGES))
    columns = {} if op is Op.DELETE else draw(st.dictionaries(st.sampled_from("pq"), values))
    table = draw(st.sampled_from(["todos", "notes"]))
    return make_delta(op, table, draw(row_ids), columns, client_id=draw(clients), hlc=draw(stamps))


@st.composite
def events(draw: st.DrawFn) -> Delta:
    columns = {"k": draw(st.integers(0, 3))}
    return make_delta(
        Op.INSERT, "events", draw(row_ids), columns, client_id=draw(clients), hlc=draw(stamps)
    )


@dataclass
class Cursor:
    """A reader: what it holds, and how far it read."""

    deltas_max: int
    at: int = 0
    received: list[Delta] = field(default_factory=list)


class Gateway(RuleBasedStateMachine):
    """Three warm processes, any number of readers, one administrator, one model."""

    cursors = Bundle("cursors")

    @initialize()
    def begin(self) -> None:
        self.time = GivenTime(WALL_MS + 10_000)
        self.buffer = MemoryBuffer()
        self.processes = [
            pusher(self.buffer, seed=number, time_=self.time, limits=SMALL) for number in range(3)
        ]
        self.readers = [puller(self.buffer, time_=self.time) for _ in range(2)]
        self.newest = 0
        self.administrator = administrator(self.buffer, time_=self.time)
        body = {"table": "events", "columns": [{"name": "k", "type": "integer"}], "append": True}
        self.administrator.register_schema(GATEWAY, body)
        self.states: dict[tuple[str, str], RowState] = {}
        self.effective: list[Delta] = []
        self.accepted: list[Delta] = []
        self.events: dict[str, list[Delta]] = {}
        self.together: list[set[Delta]] = []
        self.known: list[Cursor] = []

    # --- pushing

    @rule(process=st.integers(0, 2), deltas=st.lists(edits(), max_size=12), atomic=st.booleans())
    def edit(self, process: int, deltas: list[Delta], *, atomic: bool) -> None:
        for client in CLIENTS:
            mine = [delta for delta in deltas if delta.client_id == client]
            if not mine:
                continue
            request = push(*mine, client=client, atomic=atomic)
            try:
                receipt = self.processes[process].push(GATEWAY, request)
            except LakeSyncError:
                assert atomic  # too large for one commit, of which the log must know nothing
                continue
            self.account(mine, receipt, atomic=atomic)

    def account(self, deltas: list[Delta], receipt: PushReceipt, *, atomic: bool) -> None:
        """Hold the receipt against the model: all accepted, duplicates exactly as expected."""
        assert receipt.accepted == len(deltas)
        duplicates = {outcome.index for outcome in receipt.outcomes}
        fresh = set()
        for index, delta in enumerate(deltas):
            key = (delta.table, delta.row_id)
            before = self.states.get(key, EMPTY)
            after = self.states[key] = apply(before, delta)
            assert (after is before) == (index in duplicates)
            if after is not before:
                self.effective.append(delta)
                fresh.add(delta)
        self.accepted += deltas
        self.newest = max(self.newest, receipt.server_hlc)
        if atomic and fresh:
            self.together.append(fresh)

    @rule(process=st.integers(0, 2), deltas=st.lists(events(), min_size=1, max_size=12))
    def happen(self, process: int, deltas: list[Delta]) -> None:
        for client in CLIENTS:
            mine = [delta for delta in deltas if delta.client_id == client]
            if not mine:
                continue
            receipt = self.processes[process].push(GATEWAY, push(*mine, client=client))
            outcomes = {outcome.index: outcome for outcome in receipt.outcomes}
            taken = self.events.setdefault(client, [])
            before = {delta.delta_id for delta in taken}
            late = []
            for index, delta in enumerate(mine):
                outcome = outcomes.get(index)
                if outcome is None:
                    assert delta.delta_id not in before
                    taken.append(delta)
                    self.effective.append(delta)
                elif outcome.kind is OutcomeKind.DUPLICATE:
                    assert delta.delta_id in {known.delta_id for known in taken} | {
                        other.delta_id for other in mine
                    }
                else:
                    assert outcome.error is not None
                    assert outcome.error.code == "OUT_OF_ORDER"
                    assert delta.delta_id not in before
                    late.append(delta)
            for delta in late:
                assert any(known.hlc > delta.hlc for known in taken)

    # --- administration

    @rule(
        table=st.sampled_from(["todos", "events"]),
        shard=st.sampled_from(["main", "hot"]),
    )
    def place(self, table: str, shard: str) -> None:
        self.administrator.place_table(GATEWAY, table, shard)

    @rule(milliseconds=st.sampled_from([1, 300, 2_000, 120_000]))
    def wait(self, milliseconds: int) -> None:
        self.time.now_ms += milliseconds

    @precondition(lambda self: self.buffer.heads(GATEWAY))
    @rule()
    def close_idle_lanes(self) -> None:
        close_idle(self.buffer, GATEWAY, stamp(int(self.time.now_ms) - IDLE_MS))

    # --- pulling

    @rule(target=cursors, deltas_max=st.sampled_from([1, 2, 3, 5, 100]))
    def arrive(self, deltas_max: int) -> Cursor:
        cursor = Cursor(deltas_max)
        self.known.append(cursor)
        return cursor

    @rule(
        cursor=cursors,
        reader=st.integers(0, 1),
        wanted=st.sampled_from(["whatever is final", "all accepted", "the newest"]),
    )
    def pull(self, cursor: Cursor, reader: int, wanted: str) -> None:
        at_least = {"all accepted": self.newest, "the newest": STAMP_MAX}.get(wanted, 0)
        pull = Pull("r", since=cursor.at, deltas_max=cursor.deltas_max, at_least=at_least)
        page = self.readers[reader].pull(GATEWAY, pull)
        assert page.has_more or page.cursor >= (self.newest if at_least else 0)
        assert page.has_more or page.behind_ms == 0 or not at_least
        deltas = deltas_of(page)
        assert page.count == len(deltas)
        assert page.cursor >= cursor.at
        assert not page.has_more or page.cursor > cursor.at
        # Less than one commit beyond what was asked for; a commit holds 8 items at most, but a
        # row may be changed by several of its deltas.
        assert len(deltas) < cursor.deltas_max + 12
        cursor.received += deltas
        cursor.at = page.cursor
        read = set(cursor.received)
        for whole in self.together:
            assert whole <= read or not whole & read

    # --- always

    @invariant()
    def the_log_is_what_took_effect(self) -> None:
        logged = pulled(self.buffer, GATEWAY, deltas_max=10_000)
        assert Counter(logged) == Counter(self.effective)

    @invariant()
    def rows_are_what_their_deltas_make_of_them(self) -> None:
        stored_rows = self.buffer.rows(GATEWAY, self.states)
        for (table, row_id), state in self.states.items():
            stored = stored_rows.get((table, row_id))
            assert decode_row_state(stored.state if stored else None) == state
            mine = [d for d in self.accepted if (d.table, d.row_id) == (table, row_id)]
            assert view(state) == expected_row(mine)

    def teardown(self) -> None:
        for cursor in getattr(self, "known", []):
            rest = pulled(self.buffer, GATEWAY, since=cursor.at, deltas_max=cursor.deltas_max)
            assert Counter(cursor.received + rest) == Counter(self.effective)


@pytest.mark.law("B1")
@pytest.mark.law("B2")
@pytest.mark.law("B6")
@pytest.mark.law("B8")
@pytest.mark.law("B9")
@pytest.mark.law("A1")
@pytest.mark.law("A2")
@pytest.mark.law("A3")
def test_any_interleaving_gives_every_cursor_each_effective_delta_once() -> None:
    run_state_machine_as_test(
        Gateway, settings=settings(settings.default, max_examples=60, stateful_step_count=20)
    )
