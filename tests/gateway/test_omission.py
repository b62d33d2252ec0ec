"""Columns that rules leave out: no way out of the gateway has them, and nobody is kept waiting."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakesync.checkpoint import store
from lakesync.core.delta import Op, parse
from lakesync.core.merge import view
from lakesync.core.messages import Pull, Resync
from lakesync.wire.records import decode_row_state
from tests.gateway.test_rule_filter import RULES, edits, may_see
from tests.support.builders import at_ms, delete, insert, update
from tests.support.checkpoints import Kept
from tests.support.checkpoints import Reader as KeptReader
from tests.support.gateways import GATEWAY, MINE, administrator
from tests.support.readers import Reader, World, bucket

if TYPE_CHECKING:
    from lakesync.core.delta import Delta
    from lakesync.ports import RowKey


HR = {"claim": "role", "op": "eq", "value": "hr"}
TITLE = {"tables": ["todos"], "columns": ["title"], "except": [HR]}


@pytest.fixture
def world() -> World:
    return World()


def write(world: World, *deltas: Delta) -> None:
    """Write as a connector does, whom no rule concerns."""
    assert world.push(*deltas, trusted=True) == []


@pytest.mark.law("V12")
class TestPages:
    def test_omitted_columns_are_removed_from_deltas_and_the_rest_is_sent(
        self, world: World
    ) -> None:
        world.rules(omit=[TITLE])
        ann, bob = Reader("ann"), Reader("bob", claims={"role": "hr"})
        write(world, insert("r1", owner="ann", title="secret", at=1))
        for reader in (ann, bob):
            reader.sync(world)

        assert ann.seen() == {("todos", "r1"): {"owner": "ann"}}
        assert bob.seen() == {("todos", "r1"): {"owner": "ann", "title": "secret"}}

    def test_delta_with_only_omitted_columns_is_not_sent_and_the_cursor_moves(
        self, world: World
    ) -> None:
        world.rules(omit=[TITLE])
        ann = Reader("ann")
        write(world, insert("r1", owner="ann", at=1))
        ann.sync(world)
        before = ann.cursor
        write(world, update("r1", title="secret", at=2))
        ann.sync(world)

        assert len(ann.sent) == 1
        assert ann.cursor > before

    def test_deletes_and_removals_are_sent_despite_omissions(self, world: World) -> None:
        world.rules(bucket(MINE), omit=[TITLE])
        ann = Reader("ann")
        made = [insert(f"r{n}", owner="ann", title="t", at=n) for n in (1, 2)]
        write(world, *made)
        ann.sync(world)
        write(world, delete("r1", at=3), update("r2", owner="bob", title="more", at=4))
        ann.sync(world)

        assert ann.seen() == {}
        assert [(delta.op, delta.columns) for delta in ann.sent[2:]] == [
            (Op.DELETE, ()),
            (Op.REMOVE, ()),
        ]

    def test_bucket_filter_may_read_an_omitted_column(self, world: World) -> None:
        world.rules(bucket(MINE), omit=[{"tables": ["todos"], "columns": ["owner"]}])
        ann = Reader("ann")
        write(world, insert("r1", owner="bob", title="a", at=1))
        write(world, insert("r2", owner="ann", title="b", at=2))
        write(world, update("r1", owner="ann", at=3))
        ann.sync(world)

        assert ann.seen() == {("todos", "r1"): {"title": "a"}, ("todos", "r2"): {"title": "b"}}

    def test_omitted_columns_are_removed_from_events(self, world: World) -> None:
        world.rules(omit=[{"tables": ["events"], "columns": ["title"]}])
        ann = Reader("ann")
        write(world, insert("e1", table="events", owner="ann", title="secret", at=1))
        ann.sync(world)

        assert ann.seen() == {("events", "e1"): {"owner": "ann"}}

    def test_row_with_only_omitted_columns_is_not_sent(self, world: World) -> None:
        world.rules(omit=[TITLE])
        ann = Reader("ann")
        write(world, update("r1", title="secret", at=1))
        ann.sync(world)
        assert ann.sent == []

        write(world, update("r1", owner="ann", at=2))
        ann.sync(world)
        assert ann.seen() == {("todos", "r1"): {"owner": "ann"}}

    def test_client_without_omissions_is_sent_the_logged_bytes(self, world: World) -> None:
        """So a scope without omissions pays for none of it."""
        world.rules(omit=[TITLE])
        write(world, insert("r1", owner="ann", title="secret", at=1))
        write(world, insert("l1", table="lists", title="list", at=2))
        heads = world.buffer.heads(GATEWAY).values()
        todo, of_list = [entry.records for head in heads for entry in head.recent]
        hr, ann = {"sub": "bob", "role": "hr"}, {"sub": "ann"}
        whole = world.pulls.pull(GATEWAY, Pull("bob", claims=hr))
        partial = world.pulls.pull(GATEWAY, Pull("ann", claims=ann))

        assert [id(run) for run in whole.records] == [id(todo), id(of_list)]
        assert id(partial.records[1]) == id(of_list)
        assert b"secret" not in b"".join(partial.records)


@pytest.mark.law("V12")
class TestRulesThatChange:
    def test_changed_omissions_resync_only_the_tables_concerned(self, world: World) -> None:
        write(world, insert("r1", owner="ann", title="secret", at=1))
        write(world, insert("l1", table="lists", title="list", at=2))
        world.flush_and_trim()
        ann = Reader("ann")
        ann.sync(world)
        world.rules(omit=[TITLE])
        ann.sync(world)
        assert ann.resyncs == [Resync(("todos",), omitted={"todos": ("title",)})]
        assert ann.seen()["todos", "r1"] == {"owner": "ann"}

        ann.claims["role"] = "hr"
        ann.sync(world)
        assert ann.resyncs == [Resync(("todos",))]
        assert ann.seen()["todos", "r1"] == {"owner": "ann", "title": "secret"}

    def test_omission_for_all_tables_removes_its_columns_from_rows_of_every_table(
        self, world: World
    ) -> None:
        write(world, insert("o1", table="other", owner="ann", title="secret", at=1))
        write(world, insert("r1", title="a", at=2))
        world.flush_and_trim()
        ann = Reader("ann")
        ann.sync(world)
        # Events would have everything read anew: they are all there is of themselves.
        world.rules(bucket(tables=["other", "todos"]), omit=[{"tables": [], "columns": ["title"]}])
        ann.sync(world)

        assert ann.seen()["other", "o1"] == {"owner": "ann"}
        assert ("todos", "r1") in ann.seen()
        assert ann.seen()["todos", "r1"] == {}


@pytest.mark.law("V12")
class TestWrites:
    def test_write_to_an_omitted_column_is_refused_and_other_deltas_are_accepted(
        self, world: World
    ) -> None:
        world.rules(omit=[TITLE])
        made = insert("r1", owner="ann", at=1), insert("r2", owner="ann", title="x", at=2)

        assert world.push(*made, sub="ann") == ["COLUMN_OMITTED"]
        assert [key[1] for key in rows_of(world)] == ["r1"]
        assert world.push(delete("r1", at=3), sub="ann") == []

    def test_write_filters_do_not_permit_writes_to_an_omitted_column(self, world: World) -> None:
        world.rules(bucket(), omit=[TITLE])

        assert world.push(insert("r1", title="x", at=1), sub="ann") == ["COLUMN_OMITTED"]

    def test_event_with_an_omitted_column_is_refused(self, world: World) -> None:
        world.rules(omit=[{"tables": ["events"], "columns": ["title"]}])
        events = [insert("e1", table="events", title="x", at=1),
                  insert("e2", table="events", owner="x", at=2)]  # fmt: skip

        assert world.push(*events, sub="ann") == ["COLUMN_OMITTED"]

    def test_repeated_push_of_a_column_omitted_since_is_accepted(self, world: World) -> None:
        change = insert("r1", title="x", at=1)
        assert world.push(change, sub="ann") == []
        world.rules(omit=[TITLE])

        assert world.push(change, sub="ann") == []
        assert world.push(update("r1", title="y", at=2), sub="ann") == ["COLUMN_OMITTED"]

    def test_rules_without_buckets_log_no_rule_rows(self, world: World) -> None:
        world.rules(omit=[TITLE])
        world.push(insert("r1", owner="ann", at=1))

        assert [entry.rule_rows for head in world.buffer.heads(GATEWAY).values()
                for entry in head.recent] == [b""]  # fmt: skip


# --- other ways out -------------------------------------------------------------------------------


@pytest.mark.law("V12")
@pytest.mark.parametrize("deltas_max", [1, 3, 100])
@pytest.mark.parametrize("filters", [[], [MINE]])
def test_checkpoint_is_sent_without_omitted_columns(
    monkeypatch: pytest.MonkeyPatch, deltas_max: int, filters: list[Any]
) -> None:
    monkeypatch.setattr(store, "PART_DELTAS_MAX", 4)
    kept = Kept(chunk_bytes=400)
    columns = [{"name": name, "type": "string"} for name in ("owner", "title", "state")]
    kept.admin.register_schema(GATEWAY, {"table": "todos", "columns": columns})
    kept.rules(bucket(*filters))
    kept.time.now_ms += 600_000
    for n in range(8):
        kept.push(insert(f"r{n}", at=at_ms(n), owner="bob", title="secret", state="open"))
    kept.push(update("r1", at=at_ms(20), client="b", title="more"), delete("r2", at=at_ms(21)))
    kept.push(update("r9", at=at_ms(22), title="alone"))
    kept.flushed()
    kept.build()
    kept.rules(bucket(*filters), omit=[TITLE])
    reader = KeptReader(kept, claims={"sub": "bob"}, deltas_max=deltas_max)
    reader.read()

    rows = {key[1]: view(state) for key, state in reader.states.items()}
    whole = {"owner": b'"bob"', "state": b'"open"'}
    due = {f"r{n}": whole for n in range(8) if n != 2}
    assert {row_id: row for row_id, row in rows.items() if row is not None} == due
    sent = b"".join(run for page in reader.pages for run in page.records)
    assert not [text for text in (b"title", b"secret", b"more", b"alone") if text in sent]


@pytest.mark.law("V12")
def test_schemas_for_a_client_do_not_name_omitted_columns(world: World) -> None:
    every = {"tables": ["lists"], "columns": ["owner", "title", "state"]}
    world.rules(omit=[TITLE, every])
    admin = administrator(world.buffer, time_=world.time)
    shown = {
        schema.table: [column.name for column in schema.columns]
        for schema in admin.schemas_for(GATEWAY, {"sub": "ann"}).tables
    }

    assert shown["todos"] == ["owner", "state"]
    assert "lists" not in shown
    hr = admin.schemas_for(GATEWAY, {"sub": "ann", "role": "hr"}).tables
    assert ["owner", "title", "state"] in [[c.name for c in schema.columns] for schema in hr]


# --- any history ----------------------------------------------------------------------------------

NOT_ANN = {"claim": "sub", "op": "neq", "value": "ann"}
OMIT: list[list[dict[str, Any]]] = [
    [],
    [TITLE],
    [{"tables": ["todos"], "columns": ["owner", "Title"], "except": [HR]}],
    [{"tables": [], "columns": ["state"], "except": [NOT_ANN]}, TITLE],
    [{"tables": ["todos"], "columns": ["owner", "title", "state"]}],
]  # fmt: skip


def left_out(omit: list[dict[str, Any]], claims: dict[str, Any]) -> set[str]:
    """Return what is left out of todos in the most obvious way, for the omissions above."""

    def passes(item: dict[str, Any]) -> bool:
        value = claims.get(item["claim"])
        return value is not None and (value == item["value"]) is (item["op"] == "eq")

    kept = [each for each in omit if "except" in each and all(map(passes, each["except"]))]
    return {name.lower() for each in omit if each not in kept for name in each["columns"]}


def rows_of(world: World) -> dict[RowKey, tuple[bool, dict[str, Any]]]:
    """Return the rows there are: whether they were inserted, and their columns."""
    stored = world.buffer.rows(GATEWAY, [("todos", f"r{number}") for number in range(9)])
    states = {key: decode_row_state(row.state) for key, row in stored.items()}
    return {
        key: (state.alive > 0, {name: parse(raw) for name, raw in row.items()})
        for key, state in states.items()
        if (row := view(state)) is not None
    }


pushes = st.tuples(st.just("push"), st.lists(edits, min_size=1, max_size=3))
syncs = st.tuples(st.just("sync"), st.integers(0, 2))
changes = st.tuples(st.just("change"), st.tuples(st.sampled_from(RULES), st.sampled_from(OMIT)))
promotions = st.tuples(
    st.just("promote"), st.tuples(st.integers(0, 2), st.sampled_from(["hr", "dev"]))
)
trims = st.tuples(st.just("trim"), st.none())
steps = st.sampled_from(
    [pushes, pushes, pushes, syncs, syncs, syncs, changes, promotions, trims]
).flatmap(lambda step: step)


@dataclass
class Story:
    """A gateway, its rules, and clients with claims."""

    rules: list[dict[str, Any]]
    omit: list[dict[str, Any]]
    limit: int
    world: World = field(default_factory=World)
    number: int = 0

    def __post_init__(self) -> None:
        self.readers = [Reader("ann", limit=self.limit), Reader("bob", claims={"role": "hr"}),
                        Reader("ann", removes=False)]  # fmt: skip
        self.world.rules(*self.rules, omit=self.omit)

    def omitted(self, reader: Reader) -> set[str]:
        return left_out(self.omit, {"sub": reader.sub, **reader.claims})

    def sync(self, which: int) -> None:
        """Sync, and see that nothing is sent that is left out."""
        reader = self.readers[which]
        reader.sent.clear()
        reader.sync(self.world)
        sent = {name.lower() for delta in reader.sent for name, _ in delta.columns}
        assert not sent & self.omitted(reader)

    def push(self, edits: list[Any]) -> None:
        deltas = []
        for op, row, values in edits:
            self.number += 1
            at = at_ms(0, self.number)
            make: Any = {"insert": insert, "update": update}.get(op)
            deltas.append(make(row, at=at, **values) if make else delete(row, at=at))
        write(self.world, *deltas)

    def change(self, said: tuple[list[dict[str, Any]], list[dict[str, Any]]]) -> None:
        self.rules, self.omit = said
        self.world.rules(*self.rules, omit=self.omit)

    def promote(self, said: tuple[int, str]) -> None:
        self.readers[said[0]].claims["role"] = said[1]

    def trim(self, _: None) -> None:
        if self.world.buffer.heads(GATEWAY):
            self.world.flush_and_trim()

    def due(self, reader: Reader) -> dict[RowKey, dict[str, Any]]:
        due = {}
        for key, (was_inserted, row) in rows_of(self.world).items():
            shown = {name: row[name] for name in row.keys() - self.omitted(reader)}
            if may_see(self.rules, reader.sub, row) and (shown or was_inserted):
                due[key] = shown
        return due


@pytest.mark.law("V12")
@settings(max_examples=300)
@given(
    st.sampled_from(RULES),
    st.sampled_from(OMIT),
    st.lists(steps, min_size=3, max_size=25),
    st.integers(1, 3),
)
def test_no_client_is_sent_omitted_columns_and_each_holds_the_rest(
    rules: list[dict[str, Any]], omit: list[dict[str, Any]], happened: list[Any], limit: int
) -> None:
    story = Story(rules, omit, limit)
    for what, how in happened:
        getattr(story, what)(how)
    for which, reader in enumerate(story.readers):
        story.sync(which)
        assert reader.seen() == story.due(reader)
