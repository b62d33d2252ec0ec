"""lakesync.gateway.sight: what a client is sent of a log, under rules, claims and their change."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakesync.buffer.memory import MemoryBuffer
from lakesync.core.delta import Op
from lakesync.core.merge import EMPTY, apply, view
from lakesync.core.messages import SNAPSHOT, Pull, PullPage
from lakesync.core.values import parse
from lakesync.errors import CursorExpired
from lakesync.gateway.limits import Limits
from lakesync.result import Err
from lakesync.wire.records import decode_records
from lakesync.wire.row_state import decode_row_state
from tests.support.builders import WALL_MS, at_ms, delete, insert, push, update
from tests.support.gateways import GivenTime, administrator, puller, pusher

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lakesync.core.delta import Delta
    from lakesync.core.merge import RowState

GATEWAY = "g1"
MINE = {"column": "owner", "op": "eq", "value": "jwt:sub"}


def bucket(*filters: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"name": "mine", "tables": ["todos"], "filters": list(filters)} | more


@dataclass
class World:
    """A gateway with a schema and rules, in memory, and a clock that is given."""

    buffer: MemoryBuffer = field(default_factory=MemoryBuffer)
    time: GivenTime = field(default_factory=lambda: GivenTime(WALL_MS))
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        self.push_service = pusher(self.buffer, time_=self.time, limits=self.limits)
        self.pull_service = puller(self.buffer, time_=self.time, limits=self.limits)
        columns = [{"name": name, "type": "string"} for name in ("owner", "title", "state")]
        for table in ("todos", "events"):
            body = {"table": table, "columns": columns, "append": table == "events"}
            administrator(self.buffer, time_=self.time).register_schema(GATEWAY, body).unwrap()

    def rules(self, *buckets: dict[str, Any]) -> None:
        body = {"version": 1, "buckets": [b | {"name": str(n)} for n, b in enumerate(buckets)]}
        administrator(self.buffer, time_=self.time).save_rules(GATEWAY, body).unwrap()

    def push(self, *deltas: Delta, sub: str = "c1") -> list[str]:
        """Push; give the codes of what was refused."""
        self.time.now_ms += 10
        wanted = replace(push(*deltas), claims={"sub": sub})
        receipt = self.push_service.push(GATEWAY, wanted).unwrap()
        return [outcome.error.code for outcome in receipt.outcomes if outcome.error]

    def pages(self, pull: Pull) -> Iterator[PullPage]:
        while True:
            page = self.pull_service.pull(GATEWAY, pull).unwrap()
            yield page
            if not page.has_more:
                return
            pull = replace(pull, since=page.cursor, scope=page.scope, snapshot=page.snapshot)


@dataclass
class Reader:
    """A client that does what a page says, in the order in which it says it."""

    sub: str
    removes: bool = True
    limit: int = 100
    cursor: int = 0
    scope: str = ""
    rows: dict[tuple[str, str], RowState] = field(default_factory=dict)
    sent: list[Delta] = field(default_factory=list)

    def sync(self, world: World) -> None:
        claims = {"sub": self.sub}
        pull = Pull(
            self.sub, self.cursor, self.limit, claims=claims, removes=self.removes, scope=self.scope
        )
        try:
            self.take(world.pages(pull))
        except CursorExpired:
            self.rows.clear()
            self.take(world.pages(replace(pull, since=0, scope="", snapshot=SNAPSHOT)))

    def take(self, pages: Iterator[PullPage]) -> None:
        for page in pages:
            for run in page.records:
                for delta in decode_records(run):
                    self.sent.append(delta)
                    self.apply(delta)
            self.cursor, self.scope = page.cursor, page.scope

    def apply(self, delta: Delta) -> None:
        key = (delta.table, delta.row_id)
        gone = delta.op is Op.REMOVE or (not self.removes and delta.op is Op.DELETE)
        if gone:
            self.rows.pop(key, None)
        else:
            self.rows[key] = apply(self.rows.get(key, EMPTY), delta)

    def seen(self) -> dict[tuple[str, str], dict[str, Any]]:
        return shown(self.rows)


def shown(rows: dict[tuple[str, str], RowState]) -> dict[tuple[str, str], dict[str, Any]]:
    found = {}
    for key, state in rows.items():
        columns = view(state)
        if columns is not None:
            found[key] = {name: parse(raw) for name, raw in columns.items()}
    return found


def truth(world: World) -> dict[tuple[str, str], dict[str, Any]]:
    held = world.buffer.rows(GATEWAY, [("todos", f"r{number}") for number in range(9)])
    return shown({key: decode_row_state(stored.state) for key, stored in held.items()})


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.law("V7")
class TestEnteringAndLeaving:
    def test_a_row_that_comes_into_sight_is_sent_whole(self, world: World) -> None:
        world.rules(bucket(MINE))
        ann = Reader("ann")
        world.push(insert("r1", owner="bob", title="a", at=1))
        world.push(update("r1", state="open", at=2))
        ann.sync(world)
        assert ann.sent == []

        world.push(update("r1", owner="ann", at=3))
        ann.sync(world)

        assert ann.seen() == {("todos", "r1"): {"owner": "ann", "title": "a", "state": "open"}}
        assert {delta.hlc for delta in ann.sent} == {1, 2, 3}

    @pytest.mark.parametrize(("removes", "op"), [(True, Op.REMOVE), (False, Op.DELETE)])
    def test_a_row_that_leaves_is_taken_away_without_its_new_values(
        self, world: World, *, removes: bool, op: Op
    ) -> None:
        world.rules(bucket(MINE))
        ann = Reader("ann", removes=removes)
        world.push(insert("r1", owner="ann", title="a", at=1))
        ann.sync(world)
        world.push(update("r1", owner="bob", title="secret", at=2))
        ann.sync(world)

        assert ann.seen() == {}
        assert (ann.sent[-1].op, ann.sent[-1].columns) == (op, ())

    def test_deletes_reach_exactly_those_who_saw_the_row(self, world: World) -> None:
        world.rules(bucket(MINE))
        ann, bob = Reader("ann"), Reader("bob")
        world.push(insert("r1", owner="ann", at=1))
        ann.sync(world)
        world.push(delete("r1", at=2))
        ann.sync(world)
        bob.sync(world)

        assert [delta.op for delta in ann.sent] == [Op.INSERT, Op.DELETE]
        assert bob.sent == []

    def test_a_row_deleted_and_made_again_in_one_push_is_there(self, world: World) -> None:
        world.rules(bucket(MINE))
        ann = Reader("ann")
        world.push(insert("r1", owner="ann", title="a", at=1))
        ann.sync(world)
        world.push(delete("r1", at=2), insert("r1", owner="ann", title="b", at=3))
        ann.sync(world)

        assert ann.seen() == {("todos", "r1"): {"owner": "ann", "title": "b"}}

    def test_a_table_that_no_bucket_covers_is_sent_to_nobody(self, world: World) -> None:
        world.rules(bucket(MINE))
        ann = Reader("ann")
        world.push(insert("r1", table="other", owner="ann", at=1))
        ann.sync(world)

        assert ann.sent == []

    def test_what_was_logged_before_the_rules_is_decided_by_the_row_as_it_is(
        self, world: World
    ) -> None:
        ann = Reader("ann")
        world.push(insert("r1", owner="bob", at=1), insert("r2", owner="ann", at=2))
        ann.sync(world)
        world.push(update("r1", title="secret", at=3), update("r2", title="mine", at=4))
        world.rules(bucket(MINE))
        ann.scope = ""  # as a client that knows none
        ann.sync(world)

        assert ann.seen() == {("todos", "r2"): {"owner": "ann", "title": "mine"}}

    def test_who_begins_is_sent_no_removals_of_what_it_never_had(self, world: World) -> None:
        world.push(insert("r1", owner="bob", at=1), insert("r2", owner="ann", at=2))
        world.rules(bucket(MINE))
        ann = Reader("ann", limit=1)
        ann.sync(world)

        assert [delta.row_id for delta in ann.sent] == ["r2"]

    def test_events_are_rows_of_their_own(self, world: World) -> None:
        world.push(insert("e0", table="events", owner="ann", at=1))
        world.push(insert("e1", table="events", owner="bob", at=2))
        world.rules(bucket(MINE, tables=["events"]))
        world.push(insert("e2", table="events", owner="ann", at=3))
        world.push(insert("e3", table="events", owner="bob", at=4))
        ann = Reader("ann")
        ann.sync(world)

        assert [delta.row_id for delta in ann.sent] == ["e0", "e2"]


@pytest.mark.law("V8")
class TestSparse:
    def test_a_page_that_is_filtered_empty_moves_the_cursor(self) -> None:
        world = World(limits=Limits(page_deltas_max=5))
        world.rules(bucket(MINE))
        for number in range(300):
            world.push(insert(f"r{number}", owner="bob", at=number + 1))
        service = world.pull_service
        pull = Pull("ann", deltas_max=5, claims={"sub": "ann"})
        first = service.pull(GATEWAY, pull).unwrap()
        again = [page.cursor for page in world.pages(pull)]

        assert (first.count, first.has_more) == (0, True)
        assert first.cursor > 0
        assert again == sorted(set(again))

    def test_one_request_gets_past_all_that_is_hidden(self, world: World) -> None:
        world.rules(bucket(MINE))
        for number in range(500):
            world.push(insert(f"r{number}", owner="bob", at=number + 1))
        world.push(insert("mine", owner="ann", at=9_999))
        page = world.pull_service.pull(
            GATEWAY, Pull("ann", deltas_max=10, claims={"sub": "ann"})
        ).unwrap()

        assert (page.count, page.has_more) == (1, False)


@pytest.mark.law("V6")
class TestScope:
    def test_a_cursor_of_another_scope_is_void(self, world: World) -> None:
        ann = Reader("ann")
        world.push(insert("r1", owner="bob", at=1))
        ann.sync(world)
        assert ann.seen()

        world.rules(bucket(MINE))
        error = world.pull_service.pull(
            GATEWAY, Pull("ann", ann.cursor, claims={"sub": "ann"}, scope=ann.scope)
        )
        ann.sync(world)

        assert isinstance(error, Err)
        assert isinstance(error.error, CursorExpired)
        assert ann.seen() == {}

    def test_claims_that_no_filter_reads_void_nothing(self, world: World) -> None:
        world.rules(bucket(MINE))
        ann = Reader("ann")
        world.push(insert("r1", owner="ann", at=1))
        ann.sync(world)
        pull = Pull("ann", ann.cursor, claims={"sub": "ann", "exp": 9}, scope=ann.scope)

        assert world.pull_service.pull(GATEWAY, pull).unwrap().count == 0


@pytest.mark.law("V5")
class TestWrites:
    def test_a_refused_write_is_one_delta_not_the_push(self, world: World) -> None:
        world.rules(bucket(write=[MINE]))
        mine, theirs = insert("r1", owner="ann", at=1), insert("r2", owner="bob", at=2)

        assert world.push(mine, theirs, sub="ann") == ["FORBIDDEN"]
        assert truth(world).keys() == {("todos", "r1")}

    def test_a_row_is_not_given_away_nor_taken(self, world: World) -> None:
        world.rules(bucket(write=[MINE]))
        world.push(insert("r1", owner="ann", at=1), sub="ann")
        world.push(insert("r2", owner="bob", at=2), sub="bob")

        assert world.push(update("r1", owner="bob", at=3), sub="ann") == ["FORBIDDEN"]
        assert world.push(update("r2", owner="ann", at=4), sub="ann") == ["FORBIDDEN"]
        assert world.push(delete("r2", at=5), sub="ann") == ["FORBIDDEN"]
        assert world.push(update("r1", title="fine", at=6), sub="ann") == []

    def test_events_are_judged_too(self, world: World) -> None:
        world.rules(bucket(tables=["events"], write=[MINE]))
        events = [
            insert("e1", table="events", owner="ann", at=1),
            insert("e2", table="events", owner="bob", at=2),
        ]

        assert world.push(*events, sub="ann") == ["FORBIDDEN"]


# --- any history ----------------------------------------------------------------------------------

owners = st.sampled_from(["ann", "bob"])
rows = st.sampled_from(["r0", "r1"])
RULES: list[list[dict[str, Any]]] = [
    [],
    [bucket(MINE)],
    [bucket(MINE), bucket({"column": "state", "op": "eq", "value": "open"})],
    [bucket({"column": "state", "op": "neq", "value": "open"})],
    [bucket(MINE, tables=[]), bucket({"column": "title", "op": "gt", "value": "m"})],
]


def may_see(rules: list[dict[str, Any]], sub: str, row: dict[str, Any]) -> bool:
    """Decide in the most obvious way, for the rules above."""
    if not rules:
        return True

    def holds(item: dict[str, Any]) -> bool:
        value = row.get(item["column"])
        due = sub if item["value"] == "jwt:sub" else item["value"]
        if value is None:
            return False
        return bool({"eq": value == due, "neq": value != due, "gt": value > due}[item["op"]])

    return any(all(holds(item) for item in one["filters"]) for one in rules)


columns = st.fixed_dictionaries(
    {},
    optional={"owner": owners | st.none(), "title": st.sampled_from(["a", "z"]),
              "state": st.sampled_from(["open", "done"])},
)  # fmt: skip
edits = st.tuples(st.sampled_from(["insert", "update", "update", "delete"]), rows, columns)
pushes = st.tuples(st.just("push"), st.lists(edits, min_size=1, max_size=3))
syncs = st.tuples(st.just("sync"), st.integers(0, 2))
changes = st.tuples(st.just("rules"), st.integers(0, len(RULES) - 1))
steps = st.sampled_from([pushes, pushes, syncs, syncs, pushes, syncs, changes]).flatmap(lambda s: s)


@pytest.mark.law("V4", "V6", "V7")
@settings(max_examples=400)
@given(st.integers(0, len(RULES) - 1), st.lists(steps, min_size=3, max_size=30), st.integers(1, 3))
def test_whatever_happens_each_client_holds_what_it_may_see_and_was_sent_nothing_else(
    first: int, happened: list[Any], limit: int
) -> None:
    world = World()
    readers = [Reader("ann", limit=limit), Reader("bob"), Reader("ann", removes=False)]
    rules = RULES[first]
    world.rules(*rules)
    number = 0
    history: list[dict[tuple[str, str], dict[str, Any]]] = []
    passing: list[Any] = []
    for what, how in happened:
        if what == "push":
            deltas = []
            for op, row, values in how:
                number += 1
                made = {"insert": insert, "update": update}.get(op)
                deltas.append(
                    made(row, at=at_ms(0, number), **values) if made
                    else delete(row, at=at_ms(0, number))
                )  # fmt: skip
            before = truth(world)
            world.push(*deltas)
            history.append(truth(world))
            for delta in deltas:  # a row in sight before and after a commit: its deltas are sent
                key = (delta.table, delta.row_id)
                ends = [before.get(key), history[-1].get(key)]
                values = {name: parse(raw) for name, raw in delta.columns}
                passing += [(key, values, ends)]
        elif what == "rules":
            rules = RULES[how]
            world.rules(*rules)
            history, passing = [truth(world)], []
        else:
            sync(world, readers[how], rules, history, passing)
    for reader in readers:
        sync(world, reader, rules, history, passing)
        due = {key: row for key, row in truth(world).items() if may_see(rules, reader.sub, row)}
        assert reader.seen() == due


def sync(
    world: World,
    reader: Reader,
    rules: list[dict[str, Any]],
    history: list[dict[tuple[str, str], dict[str, Any]]],
    passing: list[Any],
) -> None:
    """Sync, and hold every value that is sent against what the client may see or ever might."""
    reader.sent.clear()
    reader.sync(world)
    allowed = {
        (key, name, value)
        for rows_then in [*history, truth(world)]
        for key, row in rows_then.items()
        if may_see(rules, reader.sub, row)
        for name, value in row.items()
    } | {
        (key, name, value)
        for key, values, ends in passing
        if all(row is not None and may_see(rules, reader.sub, row) for row in ends)
        for name, value in values.items()
    }
    if rules:  # what was logged before is decided by the row as it is now
        for delta in reader.sent:
            for name, raw in delta.columns:
                assert ((delta.table, delta.row_id), name, parse(raw)) in allowed
