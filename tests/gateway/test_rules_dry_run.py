"""lakesync.gateway.admin_changes: what rules would do, against what they do once they are saved."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakesync.buffer.memory_buffer import MemoryBuffer
from lakesync.errors import RulesRefused
from lakesync.gateway import admin_changes as trial
from lakesync.gateway.admin_changes import TableTrial, trial_to_json
from tests.support.builders import WALL_MS, at_ms, delete, insert, update
from tests.support.gateways import (
    GATEWAY,
    MINE,
    GatewayWorld,
    GivenTime,
    deltas_of,
)

if TYPE_CHECKING:
    from lakesync.ports import RowSlice

OPEN = {"column": "state", "op": "eq", "value": "open"}


def bucket(*filters: dict[str, Any], name: str = "b", **more: Any) -> dict[str, Any]:
    return {"name": name, "tables": ["todos"], "filters": list(filters)} | more


class World(GatewayWorld):
    """A gateway with tables, and an administrator who tries rules."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for table in ("events", "notes", "todos"):
            self.declare_tables(
                table, columns=("owner", "state", "title"), append=table == "events"
            )

    def tries(
        self, *buckets: dict[str, Any], omit: Any = (), **claims: Any
    ) -> dict[str, TableTrial]:
        body = {"buckets": list(buckets), "omit": list(omit)}
        trials = self.admin.try_rules(GATEWAY, body, claims or None)
        return {trial.table: trial for trial in trials}

    def sees(self, **claims: Any) -> set[tuple[str, str]]:
        """Return the rows of todos that a new client pulls, by the rules in force."""
        page = self.page(deltas_max=10_000, claims=claims, removes=True)
        alive: set[tuple[str, str]] = set()
        for delta in deltas_of(page):
            key = (delta.table, delta.row_id)
            alive.discard(key) if delta.op.name in {"DELETE", "REMOVE"} else alive.add(key)
        return {key for key in alive if key[0] != "events"}


@pytest.fixture
def world() -> World:
    world = World()
    world.push(
        insert("r1", at=at_ms(1), owner="ann", state="open", title="a"),
        insert("r2", at=at_ms(2), owner="ann", state="done", title="b"),
        insert("r3", at=at_ms(3), owner="bob", state="open", title="c"),
        insert("r4", at=at_ms(4), owner="ann", state="open"),
        insert("n1", at=at_ms(5), table="notes", owner="ann"),
        insert("e1", at=at_ms(6), table="events", owner="ann"),
    )
    world.push(delete("r4", at=at_ms(7)))
    return world


def ids(shown: Any) -> set[object]:
    return {row["rowId"] for row in shown.rows}


@pytest.mark.law("V9")
class TestTrial:
    def test_trial_counts_and_lists_rows_that_are_seen_enter_and_leave(self, world: World) -> None:
        world.rules(bucket(MINE))

        todos = world.tries(bucket(OPEN), sub="ann")["todos"]

        assert todos.seen is not None
        assert (todos.seen.count, todos.seen_in_force) == (2, 2)
        assert (ids(todos.seen), ids(todos.enter), ids(todos.leave)) == (
            {"r1", "r3"}, {"r3"}, {"r2"},
        )  # fmt: skip
        assert todos.enter.rows == [
            {"rowId": "r3", "columns": {"owner": "bob", "state": "open", "title": "c"}}
        ]
        assert todos.complete

    @pytest.mark.law("V12")
    def test_trial_shows_rows_with_the_clients_columns(self, world: World) -> None:
        no_owner = {"tables": ["todos"], "columns": ["owner"]}
        world.rules(omit=[no_owner])

        not_hr = {"claim": "role", "op": "eq", "value": "hr"}
        trials = world.tries(
            bucket(OPEN), omit=[{"tables": ["todos"], "columns": ["Title"], "except": [not_hr]}],
            sub="ann",
        )  # fmt: skip
        todos = trials["todos"]

        assert todos.seen is not None
        assert [row["columns"] for row in todos.seen.rows] == [
            {"owner": "ann", "state": "open"}, {"owner": "bob", "state": "open"}
        ]  # fmt: skip
        assert [row["columns"] for row in todos.leave.rows] == [{"state": "done", "title": "b"}]
        assert (todos.omitted, todos.changes) == (("title",), True)
        again = world.tries(omit=[no_owner | {"columns": ["OWNER"]}])
        assert [trial.changes for trial in again.values()] == [False] * 3
        assert again["todos"].omitted == ("owner",)

    def test_trial_saves_and_writes_nothing(self, world: World) -> None:
        world.rules(bucket(MINE))
        before = world.buffer.config(GATEWAY), world.sees(sub="ann")

        world.tries(bucket(OPEN), sub="ann")

        assert (world.buffer.config(GATEWAY), world.sees(sub="ann")) == before

    def test_trial_reports_all_rows_leaving_for_a_table_without_a_bucket(
        self, world: World
    ) -> None:
        notes = world.tries(bucket(MINE), sub="ann")["notes"]

        assert (notes.buckets, notes.changes) == ((), True)
        assert notes.seen is not None
        assert (notes.seen.count, notes.seen_in_force, notes.leave.count) == (0, 1, 1)

    def test_trial_without_claims_reports_which_tables_change(self, world: World) -> None:
        world.rules(bucket(MINE), bucket(name="all notes", tables=["notes"]))

        trials = world.tries(bucket(MINE, name="renamed"), bucket(OPEN, name="more"))

        assert {name: (trial.buckets, trial.changes) for name, trial in trials.items()} == {
            "events": ((), False), "notes": ((), True), "todos": (("renamed", "more"), True),
        }  # fmt: skip
        again = world.tries(bucket(name="x", tables=["notes"]), bucket(MINE, name="renamed"))
        assert [trial.changes for trial in again.values()] == [False] * 3
        assert all(trial.seen is None for trial in trials.values())
        assert "'seen':" not in str(trial_to_json(list(trials.values())))

    def test_trial_reports_who_may_write(self, world: World) -> None:
        def writers(*buckets: dict[str, Any]) -> str:
            return world.tries(*buckets)["todos"].writers

        assert writers() == writers(bucket(MINE, write=[])) == "anyone"
        assert writers(bucket(MINE)) == writers(bucket(tables=["notes"])) == "seen"
        assert writers(bucket(MINE, name="x"), bucket(write=[MINE])) == "filtered"

    def test_filters_on_one_and_on_true_are_different(self, world: World) -> None:
        one, true = ({"column": "owner", "op": "eq", "value": value} for value in (1, True))
        world.rules(bucket(one))

        assert world.tries(bucket(true))["todos"].changes

    def test_trial_names_append_tables_without_counting_rows(self, world: World) -> None:
        events = world.tries(bucket(MINE), sub="ann")["events"]

        assert (events.append, events.seen) == (True, None)

    def test_trial_includes_tables_without_a_schema(self, world: World) -> None:
        world.push(insert("f1", at=at_ms(9), table="free", owner="ann"))

        free = world.tries(bucket(MINE, tables=["free"]), sub="ann")["free"]
        assert free.seen is not None
        assert (free.seen.count, free.seen_in_force) == (1, 1)

    def test_trial_sets_the_gateway_claim_to_its_own_gateway(self, world: World) -> None:
        gateway = {"column": "owner", "op": "eq", "value": "jwt:gw"}
        world.push(insert("r9", at=at_ms(9), owner=GATEWAY))

        todos = world.tries(bucket(gateway), sub="ann", gw="ann")["todos"]

        assert todos.seen is not None
        assert ids(todos.seen) == {"r9"}

    def test_trial_refuses_invalid_rules_with_the_same_error_as_saving(self, world: World) -> None:
        body = {
            "buckets": [bucket({"column": "colour", "op": "eq", "value": "x"}, tables=["todos"])]
        }
        with pytest.raises(RulesRefused) as when_saved:
            world.admin.save_rules(GATEWAY, body)
        errors = {when_saved.value.message}
        for claims in (None, {"sub": "ann"}):
            with pytest.raises(RulesRefused) as when_tried:
                world.admin.try_rules(GATEWAY, body, claims)
            errors.add(when_tried.value.message)
        assert len(errors) == 1


# --- bounds


@pytest.mark.law("V9")
class TestBounds:
    def test_trial_shows_a_few_rows_without_large_values(self, world: World) -> None:
        world.push(*(insert(f"x{n}", at=at_ms(20, n), owner="eve", title="t") for n in range(50)))
        world.push(insert("big", at=at_ms(30), owner="zoe", title="x" * 10_000, state="s"))

        eve = world.tries(bucket(MINE), sub="eve")["todos"].seen
        zoe = world.tries(bucket(MINE), sub="zoe")["todos"].seen

        assert eve is not None
        assert (eve.count, len(eve.rows)) == (50, trial.TRIAL_ROWS_SHOWN_MAX)
        assert zoe is not None
        assert zoe.rows == [
            {"rowId": "big", "columns": {"owner": "zoe", "state": "s"}, "cut": True}
        ]

    def test_trial_only_counts_rows_beyond_its_answer_size(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(trial, "TRIAL_SHOWN_BYTES_MAX", 1)

        trials = world.tries(bucket(OPEN), sub="ann")

        todos = trials["todos"].seen
        assert todos is not None
        assert (todos.count, todos.rows) == (2, [])
        assert len(trials["notes"].leave.rows) == 1

    def test_trial_that_reads_too_many_bytes_is_incomplete(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(trial, "TRIAL_BYTES_MAX", 1)

        trials = world.tries(sub="ann")
        answer = trial_to_json(list(trials.values()))

        assert answer["complete"] is False
        assert [trial.complete for trial in trials.values()] == [True, True, False]
        assert trials["notes"].seen is not None
        assert trials["notes"].seen.count == 1

    def test_trial_that_takes_too_long_is_incomplete(self) -> None:
        class Slow(MemoryBuffer):
            def scan_rows(self, gateway: str, table: str, place: str, count_max: int) -> RowSlice:
                time.now_ms += trial.TRIAL_MS_MAX / 2
                scan = super().scan_rows(gateway, table, place, min(count_max, 1))
                asked.append(table)
                return scan

        asked: list[str] = []
        time = GivenTime(WALL_MS)
        slow = World(Slow(), time)
        asked.clear()
        slow.push(*(insert(f"r{n}", at=at_ms(1, n), owner="ann") for n in range(9)))

        trials = slow.tries(sub="ann")

        assert asked == ["notes", "todos"]
        assert (trials["notes"].complete, trials["todos"].complete) == (True, False)
        assert trials["todos"].seen is not None
        assert trials["todos"].seen.count == 1

    def test_trial_does_not_read_tables_that_can_show_nothing(self, world: World) -> None:
        world.rules(bucket(MINE))
        world.buffer.scan_rows = None  # type: ignore[method-assign, assignment]  # not to be asked

        trials = world.tries(bucket(MINE, OPEN), region="eu")

        counts = {name: each.seen.count for name, each in trials.items() if each.seen is not None}
        assert counts == {"notes": 0, "todos": 0}


# --- it tells the truth

_FILTERS = st.sampled_from(
    [MINE, OPEN, {"column": "owner", "op": "in", "value": "jwt:team"},
     {"column": "title", "op": "gt", "value": "b"},
     {"column": "state", "op": "neq", "value": "open"}]
)  # fmt: skip
_BUCKETS = st.lists(
    st.builds(lambda filters: bucket(*filters), st.lists(_FILTERS, max_size=2)), max_size=3
).map(lambda items: [item | {"name": str(place)} for place, item in enumerate(items)])


@pytest.mark.law("V9")
@settings(max_examples=60)
@given(
    before=_BUCKETS,
    after=_BUCKETS,
    claims=st.fixed_dictionaries(
        {"sub": st.sampled_from(["ann", "bob"])},
        optional={"team": st.lists(st.sampled_from(["ann", "bob", "eve"]), max_size=2)},
    ),
    rows=st.lists(
        st.tuples(
            st.integers(0, 5),
            st.fixed_dictionaries(
                {},
                optional={
                    "owner": st.sampled_from(["ann", "bob", "eve"]),
                    "state": st.sampled_from(["open", "done"]),
                    "title": st.sampled_from("abc"),
                },
            ),
        ),
        max_size=12,
    ),
)
def test_trial_predicts_exactly_the_rows_a_client_sees_once_rules_are_saved(
    before: list[dict[str, Any]],
    after: list[dict[str, Any]],
    claims: dict[str, Any],
    rows: list[tuple[int, dict[str, str]]],
) -> None:
    world = World()
    for number, (row, columns) in enumerate(rows):
        change = update if columns else delete
        world.push(change(f"r{row}", at=at_ms(number), **columns))
    world.rules(*before)
    saw = world.sees(**claims)

    todos = world.tries(*after, **claims)["todos"]
    world.rules(*after)
    sees = world.sees(**claims)

    assert todos.seen is not None
    assert (todos.seen.count, todos.seen_in_force) == (len(sees), len(saw))
    assert todos.enter.count == len(sees - saw)
    assert todos.leave.count == len(saw - sees)
    assert ids(todos.leave) <= {row_id for _, row_id in saw - sees}
    assert ids(todos.enter) <= {row_id for _, row_id in sees - saw}
