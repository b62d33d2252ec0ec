"""lakesync.gateway.filtered_reads: what a client is sent of a log, under rules and their change."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakesync.core.delta import Op, checked_delta, parse
from lakesync.core.messages import SNAPSHOT, Pull
from lakesync.errors import CursorExpired, ValidationFailed
from lakesync.log.lanes import Limits
from tests.support.builders import at_ms, delete, insert, push, update
from tests.support.gateways import GATEWAY, MINE, administrator, pusher
from tests.support.readers import (
    Reader,
    World,
    bucket,
    bucket_without_write,
    truth,
)

if TYPE_CHECKING:
    from random import Random

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lakesync.ports import RowKey, StoredRow


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.law("V7")
class TestEnteringAndLeaving:
    def test_row_that_becomes_visible_is_sent_whole(self, world: World) -> None:
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
    def test_row_that_becomes_hidden_is_removed_without_its_new_values(
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

    def test_delete_is_sent_exactly_to_clients_that_saw_the_row(self, world: World) -> None:
        world.rules(bucket(MINE))
        ann, bob = Reader("ann"), Reader("bob")
        world.push(insert("r1", owner="ann", at=1))
        ann.sync(world)
        world.push(delete("r1", at=2))
        ann.sync(world)
        bob.sync(world)

        assert [delta.op for delta in ann.sent] == [Op.INSERT, Op.DELETE]
        assert bob.sent == []

    @pytest.mark.parametrize("removes", [True, False])
    @pytest.mark.parametrize("same_stamp", [True, False])
    def test_row_larger_than_the_delta_limit_is_sent_whole(
        self, world: World, *, removes: bool, same_stamp: bool
    ) -> None:
        half = "x" * 150_000
        world.rules(bucket(MINE))
        world.push(insert("r1", owner="bob", title=half, at=1))
        world.push(update("r1", state=half, at=1 if same_stamp else 2))
        world.push(update("r1", owner="ann", at=3))
        ann = Reader("ann", removes=removes)
        ann.sync(world)

        row = {"owner": "ann", "title": half, "state": half}
        assert ann.seen() == {("todos", "r1"): row}
        for delta in ann.sent:
            assert delta == checked_delta(*delta[:6])

    def test_row_deleted_and_inserted_again_in_one_push_is_visible(self, world: World) -> None:
        world.rules(bucket(MINE))
        ann = Reader("ann")
        world.push(insert("r1", owner="ann", title="a", at=1))
        ann.sync(world)
        world.push(delete("r1", at=2), insert("r1", owner="ann", title="b", at=3))
        ann.sync(world)

        assert ann.seen() == {("todos", "r1"): {"owner": "ann", "title": "b"}}

    def test_row_inserted_again_is_sent_with_its_delete(self, world: World) -> None:
        """Who wrote the row while it was hidden still holds what the delete took away."""
        world.rules(bucket(MINE))
        world.push(insert("r1", owner="bob", at=1))
        world.push(delete("r1", at=2))
        world.push(insert("r1", owner="ann", at=3))
        ann = Reader("ann")
        ann.sync(world)

        assert [delta.op for delta in ann.sent] == [Op.DELETE, Op.INSERT]

    def test_delete_of_an_unknown_row_is_sent_where_no_filter_applies(self, world: World) -> None:
        world.rules(bucket(), bucket(MINE, tables=["events"]))
        world.push(delete("r1", at=1), insert("e1", table="events", owner="bob", at=2))
        ann = Reader("ann")
        ann.sync(world)

        assert [(delta.op, delta.row_id) for delta in ann.sent] == [(Op.DELETE, "r1")]

    def test_table_without_a_bucket_is_sent_to_no_client(self, world: World) -> None:
        world.rules(bucket(MINE))
        ann = Reader("ann")
        world.push(insert("r1", table="other", owner="ann", at=1))
        ann.sync(world)

        assert ann.sent == []

    def test_rules_filter_tables_without_a_schema(self, world: World) -> None:
        world.rules(bucket(MINE, tables=["free"]))
        for owner in ("ann", "bob"):
            world.push(insert(f"of {owner}", table="free", owner=owner, at=1))
        ann = Reader("ann")
        ann.sync(world)

        assert ann.seen().keys() == {("free", "of ann")}

    def test_entries_logged_before_the_rules_are_filtered_by_the_current_row(
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

    def test_new_client_is_sent_no_removals(self, world: World) -> None:
        world.push(insert("r1", owner="bob", at=1), insert("r2", owner="ann", at=2))
        world.rules(bucket(MINE))
        ann = Reader("ann", limit=1)
        ann.sync(world)

        assert [delta.row_id for delta in ann.sent] == ["r2"]

    def test_events_are_filtered_individually(self, world: World) -> None:
        world.push(insert("e0", table="events", owner="ann", at=1))
        world.push(insert("e1", table="events", owner="bob", at=2))
        world.rules(bucket(MINE, tables=["events"]))
        world.push(insert("e2", table="events", owner="ann", at=3))
        world.push(insert("e3", table="events", owner="bob", at=4))
        ann = Reader("ann")
        ann.sync(world)

        assert [delta.row_id for delta in ann.sent] == ["e0", "e2"]


@pytest.mark.law("V2")
@pytest.mark.parametrize(
    "value", ["1e-99999999999999999999", "9" * 5_000, "0001-01-01T00:00+23:59"]
)
def test_no_column_value_makes_a_pull_fail(world: World, value: str) -> None:
    ordered = {"column": "title", "op": "gt", "value": "3"}
    since = {"column": "title", "op": "gt", "value": "2024-01-01"}
    rules = [bucket(ordered, name="ordered"), bucket(since, name="since")]
    world.rules(*rules)
    world.push(insert("r1", title=value, at=1), insert("r2", title="4", at=2))
    ann = Reader("ann")
    ann.sync(world)

    assert ann.seen().keys() == {("todos", "r2")}
    tried = world.admin.try_rules(GATEWAY, {"buckets": rules}, {"sub": "ann"})
    assert [item.seen.count for item in tried if item.table == "todos" and item.seen] == [1]


@pytest.mark.law("V8")
class TestSparse:
    def test_empty_page_after_filtering_moves_the_cursor(self) -> None:
        world = World(limits=Limits(page_deltas_max=5))
        world.rules(bucket(MINE))
        for number in range(300):
            world.push(insert(f"r{number}", owner="bob", at=number + 1))
        service = world.pulls
        pull = Pull("ann", deltas_max=5, claims={"sub": "ann"})
        first = service.pull(GATEWAY, pull)
        again = [page.cursor for page in world.pages(pull)]

        assert (first.count, first.has_more) == (0, True)
        assert first.cursor > 0
        assert again == sorted(set(again))

    def test_one_pull_skips_all_hidden_commits(self, world: World) -> None:
        world.rules(bucket(MINE))
        for number in range(500):
            world.push(insert(f"r{number}", owner="bob", at=number + 1))
        world.push(insert("mine", owner="ann", at=9_999))
        page = world.pulls.pull(GATEWAY, Pull("ann", deltas_max=10, claims={"sub": "ann"}))

        assert (page.count, page.has_more) == (1, False)


@pytest.mark.law("V7", "V8")
class TestManyRowsComeIntoSight:
    @staticmethod
    def given_to_ann(world: World, rows: int, title: str = "x", commits: int = 0) -> None:
        """Have rows that Ann did not see become hers, each by a commit, or all by one."""
        world.rules(bucket(MINE))
        made = [insert(f"r{n}", owner="bob", title=title, at=n + 1) for n in range(rows)]
        given = [update(f"r{n}", owner="ann", at=10_000 + n) for n in range(rows)]
        for start in range(0, rows, 50):
            world.push(*made[start : start + 50])
        for step in [given] if commits == 1 else [[delta] for delta in given]:
            world.push(*step)

    @staticmethod
    def counted(world: World, monkeypatch: pytest.MonkeyPatch, ms: int = 0) -> list[int]:
        """Note how many rows each read asks for; it takes so long."""
        asked: list[int] = []
        read = world.buffer.rows

        def rows(gateway: str, wanted: Iterable[RowKey]) -> dict[RowKey, StoredRow]:
            keys = list(wanted)
            asked.append(len(keys))
            world.time.now_ms += ms
            return read(gateway, keys)

        monkeypatch.setattr(world.buffer, "rows", rows)
        return asked

    def test_rows_of_many_commits_are_read_in_few_requests(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.given_to_ann(world, 600)
        asked = self.counted(world, monkeypatch)
        ann = Reader("ann", limit=5_000)
        ann.sync(world)

        assert len(ann.seen()) == 600
        assert len(asked) <= 8
        assert max(asked) <= 200

    def test_slow_filtered_pull_ends_in_time_and_moves_the_cursor(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.given_to_ann(world, 600)
        asked = self.counted(world, monkeypatch, ms=7_000)
        pull = Pull("ann", deltas_max=5_000, claims={"sub": "ann"}, removes=True)
        cursors = []
        for page in world.pages(pull):
            assert 1 <= len(asked) <= 2
            asked.clear()
            cursors.append(page.cursor)

        assert cursors == sorted(set(cursors))
        assert len(cursors) >= 3

    def test_filtered_page_is_bounded_in_bytes(self) -> None:
        world = World(limits=Limits(page_bytes_max=30_000))
        self.given_to_ann(world, 60, title="x" * 5_000)
        ann = Reader("ann", limit=5_000)
        pages = list(world.pages(ann.asks()))

        assert max(sum(map(len, page.records)) for page in pages) <= 30_000
        assert sum(page.count for page in pages) == 120

    @pytest.mark.parametrize("removes", [True, False])
    def test_commit_with_more_visible_rows_than_a_page_carries_is_sent_whole(
        self, *, removes: bool
    ) -> None:
        world = World(limits=Limits(page_bytes_max=30_000))
        self.given_to_ann(world, 40, title="x" * 5_000, commits=1)
        world.push(update("r3", owner="bob", at=20_000), insert("r99", owner="ann", at=20_001))
        ann = Reader("ann", limit=5_000, removes=removes)
        pages = list(world.pages(ann.asks()))
        ann.take(iter(pages))

        assert {key[1] for key in ann.seen()} == {f"r{n}" for n in range(40) if n != 3} | {"r99"}
        if removes:
            assert max(sum(map(len, page.records)) for page in pages) <= 30_000
            assert all(page.cursor > 0 for page in pages)


@pytest.mark.law("V6")
class TestScope:
    def test_claims_that_no_filter_reads_cause_no_resync(self, world: World) -> None:
        world.rules(bucket(MINE))
        ann = Reader("ann")
        world.push(insert("r1", owner="ann", at=1))
        ann.sync(world)
        pull = replace(ann.asks(), claims={"sub": "ann", "exp": 9})

        assert world.pulls.pull(GATEWAY, pull).resync is None

    def test_rule_change_during_a_snapshot_expires_it(self, world: World) -> None:
        world.push(insert("r1", owner="bob", at=1), insert("r2", owner="ann", at=2))
        world.flush_and_trim()
        ann = Reader("ann", limit=1)
        page = next(world.pages(replace(ann.asks(), snapshot=SNAPSHOT)))
        world.rules(bucket(MINE))
        with pytest.raises(CursorExpired):
            world.pulls.pull(GATEWAY, replace(ann.asks(), snapshot=page.snapshot, scope=page.scope))

        assert page.snapshot


@pytest.mark.law("V5")
class TestWrites:
    def test_refused_write_does_not_refuse_the_rest_of_the_push(self, world: World) -> None:
        world.rules(bucket(write=[MINE]))
        mine, theirs = insert("r1", owner="ann", at=1), insert("r2", owner="bob", at=2)

        assert world.push(mine, theirs, sub="ann") == ["FORBIDDEN"]
        assert truth(world).keys() == {("todos", "r1")}

    def test_each_refused_delta_gets_its_own_error_object(self, world: World) -> None:
        world.rules(bucket(write=[MINE]))
        theirs = [insert(f"r{n}", owner="bob", at=n) for n in (1, 2)]
        wanted = replace(push(*theirs), claims={"sub": "ann"})

        for atomic in (False, True):
            asked = replace(wanted, atomic=atomic)
            receipts = [world.pushes.push(GATEWAY, asked) for _ in range(2)]
            errors = [outcome.error for receipt in receipts for outcome in receipt.outcomes]
            assert len({id(error) for error in errors}) == 4

    def test_write_filters_prevent_giving_away_or_taking_a_row(self, world: World) -> None:
        world.rules(bucket(write=[MINE]))
        world.push(insert("r1", owner="ann", at=1), sub="ann")
        world.push(insert("r2", owner="bob", at=2), sub="bob")

        assert world.push(update("r1", owner="bob", at=3), sub="ann") == ["FORBIDDEN"]
        assert world.push(update("r2", owner="ann", at=4), sub="ann") == ["FORBIDDEN"]
        assert world.push(delete("r2", at=5), sub="ann") == ["FORBIDDEN"]
        assert world.push(update("r1", title="fine", at=6), sub="ann") == []

    def test_delete_older_than_an_update_is_decided_by_the_row_that_it_deletes(
        self, world: World
    ) -> None:
        """What is left of the update passes no filter, and is no row that the delete makes."""
        world.rules(bucket(write=[MINE]))
        world.push(insert("r1", owner="ann", at=1), sub="ann")
        world.push(update("r1", title="new", at=5), sub="ann")

        assert world.push(delete("r1", at=3), sub="bob") == ["FORBIDDEN"]
        assert world.push(delete("r1", at=3), sub="ann") == []

    def test_hidden_row_cannot_be_written(self, world: World) -> None:
        """Who guesses its id would be sent all of it."""
        world.rules(bucket_without_write(MINE))
        ann = Reader("ann")
        world.push(insert("r1", owner="bob", title="secret", at=1), sub="bob")
        ann.sync(world)

        for guess in (
            update("r1", owner="ann", at=2),
            insert("r1", owner="ann", at=3),
            update("r1", title="mine", at=4),
            delete("r1", at=5),
        ):
            assert world.push(guess, sub="ann") == ["FORBIDDEN"]
        ann.sync(world)

        assert ann.sent == []
        assert truth(world) == {("todos", "r1"): {"owner": "bob", "title": "secret"}}

    def test_without_write_filters_visible_and_new_rows_may_be_written(self, world: World) -> None:
        world.rules(bucket_without_write(MINE))

        assert world.push(insert("r1", owner="ann", at=1), sub="ann") == []
        assert world.push(update("r1", title="mine", at=2), sub="ann") == []
        assert world.push(update("r1", owner="bob", at=3), sub="ann") == []
        assert world.push(update("r1", owner="ann", at=4), sub="ann") == ["FORBIDDEN"]
        assert world.push(insert("r2", owner="bob", at=5), sub="ann") == []
        assert world.push(update("r2", title="more", at=6), sub="ann") == ["FORBIDDEN"]

    def test_write_permission_is_decided_by_the_row_before_the_commit(self, world: World) -> None:
        """Who gives a row away in a transaction may write to it in the rest of that."""
        world.rules(bucket_without_write(MINE))
        made, more = insert("r1", owner="bob", at=1), update("r1", title="more", at=2)

        assert world.push(made, more, sub="ann") == []
        assert world.push(made, more, sub="ann") == [], "what was accepted comes again"
        assert world.push(delete("r1", at=3), insert("r1", owner="ann", at=4), sub="ann") == [
            "FORBIDDEN",
            "FORBIDDEN",
        ]

    def test_row_deleted_while_hidden_may_be_inserted_again_without_revealing_it(
        self, world: World
    ) -> None:
        world.rules(bucket_without_write(MINE))
        ann = Reader("ann")
        world.push(insert("r1", owner="bob", title="secret", at=1), sub="bob")
        world.push(delete("r1", at=5), sub="bob")

        # What is older than the delete changes nothing, and so is taken, and shows nothing.
        assert world.push(update("r1", owner="ann", at=4), sub="ann") == []
        ann.sync(world)
        assert ann.seen() == {}

        assert world.push(insert("r1", owner="ann", at=6), sub="ann") == []
        ann.sync(world)
        assert ann.seen() == {("todos", "r1"): {"owner": "ann"}}
        assert world.push(update("r1", title="late", at=7), sub="bob") == ["FORBIDDEN"]

    def test_row_inserted_again_after_its_delete_counts_as_existing(self, world: World) -> None:
        world.rules(bucket_without_write(MINE))
        world.push(insert("r1", owner="bob", at=1), sub="bob")
        world.push(delete("r1", at=2), insert("r1", owner="bob", at=3), sub="bob")

        assert world.push(update("r1", owner="ann", at=4), sub="ann") == ["FORBIDDEN"]

    def test_rows_of_a_table_without_a_bucket_may_be_inserted_but_not_updated(
        self, world: World
    ) -> None:
        world.rules(bucket_without_write(MINE))

        assert world.push(insert("o1", table="other", owner="ann", at=1), sub="ann") == []
        assert world.push(update("o1", table="other", title="x", at=2), sub="ann") == ["FORBIDDEN"]

    def test_write_filters_replace_visibility_for_writes(self, world: World) -> None:
        world.rules(bucket(MINE, write=[]))
        world.push(insert("r1", owner="bob", at=1), sub="bob")

        assert world.push(update("r1", title="x", at=2), sub="ann") == []

    def test_events_count_as_new_rows_for_writes(self, world: World) -> None:
        world.rules(bucket_without_write(MINE, tables=["events"]))
        theirs = insert("e1", table="events", owner="bob", at=1)
        mine = insert("e1", table="events", owner="ann", at=2)

        assert world.push(theirs, sub="bob") == []
        assert world.push(mine, sub="ann") == []
        ann = Reader("ann")
        ann.sync(world)
        assert ann.sent == [mine]

    def test_atomic_push_with_a_forbidden_write_is_refused_whole(self, world: World) -> None:
        world.rules(bucket_without_write(MINE))
        world.push(insert("r1", owner="bob", at=1), sub="bob")
        guess, other = update("r1", owner="ann", at=2), insert("r2", owner="ann", at=3)

        codes = world.push(guess, other, sub="ann", atomic=True)

        assert codes == ["FORBIDDEN", "ATOMIC_PUSH_REFUSED"]
        assert truth(world).keys() == {("todos", "r1")}

    def test_write_filters_apply_to_events(self, world: World) -> None:
        world.rules(bucket(tables=["events"], write=[MINE]))
        events = [
            insert("e1", table="events", owner="ann", at=1),
            insert("e2", table="events", owner="bob", at=2),
        ]

        assert world.push(*events, sub="ann") == ["FORBIDDEN"]

    def test_write_permission_is_not_decided_by_a_stale_cached_row_of_another_shard(
        self, world: World
    ) -> None:
        administrator(world.buffer).place_table(GATEWAY, "lists", "s1")
        mine = bucket_without_write(MINE, tables=["todos", "lists"])
        world.rules(mine)
        world.push(insert("l1", table="lists", owner="bob", at=1), sub="bob")
        assert world.push(update("l1", table="lists", title="x", at=2), sub="ann") == ["FORBIDDEN"]
        other = replace(push(update("l1", table="lists", owner="ann", at=3)), claims={"sub": "bob"})
        pusher(world.buffer, seed=1, time_=world.time).push(GATEWAY, other)

        both = insert("r1", owner="ann", at=4), update("l1", table="lists", title="x", at=5)

        assert world.push(*both, sub="ann") == []


@pytest.mark.law("V5")
class TestDeletedRows:
    @pytest.fixture
    def world(self, world: World) -> World:
        """A gateway of which somebody has deleted a row of Ann's."""
        world.rules(bucket(MINE))
        world.push(insert("r1", owner="ann", title="a", at=1))
        world.push(delete("r1", at=5))
        return world

    def test_update_alone_does_not_revive_a_deleted_row(self, world: World) -> None:
        """Nobody could tell whose it is: its author alone would see it."""
        late = update("r1", title="b", at=6)

        assert world.push(late, sub="ann") == ["ROW_DELETED"]
        assert world.push(late, insert("r2", owner="ann", at=7), sub="ann", atomic=True) == [
            "ROW_DELETED",
            "ATOMIC_PUSH_REFUSED",
        ]
        assert truth(world) == {}

    def test_insert_just_after_the_delete_admits_a_later_update_in_the_same_push(
        self, world: World
    ) -> None:
        ann = Reader("ann")
        rest, late = insert("r1", owner="ann", title="a", at=5), update("r1", title="b", at=6)
        rest = rest._replace(hlc=rest.hlc + 1)

        assert world.push(rest, late, sub="ann", atomic=True) == []
        ann.sync(world)

        assert ann.seen() == {("todos", "r1"): {"owner": "ann", "title": "b"}}

    @pytest.mark.parametrize("atomic", [True, False])
    def test_update_may_precede_the_reviving_insert_of_the_same_push(
        self, world: World, *, atomic: bool
    ) -> None:
        made = delete("r1", at=6), update("r1", title="b", at=7), insert("r1", owner="ann", at=8)

        assert world.push(*made, sub="ann", atomic=atomic) == []
        assert truth(world) == {("todos", "r1"): {"owner": "ann", "title": "b"}}

    def test_insert_older_than_the_delete_does_not_admit_an_update(self, world: World) -> None:
        made = update("r1", title="b", at=7), insert("r1", owner="ann", at=4)

        assert world.push(*made, sub="ann") == ["ROW_DELETED"]

    @pytest.mark.parametrize(
        ("left_out", "row", "code"),
        [
            ("state", {"owner": "ann", "state": "open"}, "COLUMN_OMITTED"),
            ("state", {"owner": "bob"}, "FORBIDDEN"),
            ("owner", {"title": "a"}, "ROW_DELETED"),
        ],
    )
    def test_refused_insert_does_not_admit_an_update_of_a_deleted_row(
        self, world: World, left_out: str, row: dict[str, str], code: str
    ) -> None:
        hidden = {"tables": ["todos"], "columns": [left_out], "except": []}
        write = [] if left_out == "owner" else [MINE]
        world.rules(bucket(MINE, write=write), omit=[hidden])
        kept = {} if left_out == "owner" else {"owner": "ann"}
        made = update("r1", title="b", at=7, **kept), insert("r1", **row, at=8)

        assert sorted(world.push(*made, sub="ann")) == sorted(["ROW_DELETED", code])
        assert truth(world) == {}

    def test_insert_that_exceeds_the_row_limit_does_not_admit_an_update(self) -> None:
        world = World(limits=Limits(row_state_bytes_max=300))
        world.rules(bucket(MINE))
        world.push(insert("r1", owner="ann", at=1), delete("r1", at=5))
        made = update("r1", title="b", at=7), insert("r1", owner="ann", state="x" * 300, at=6)

        assert sorted(world.push(*made, sub="ann")) == ["ROW_DELETED", "ROW_TOO_LARGE"]
        assert truth(world) == {}

    @pytest.mark.parametrize("rows_bytes_max", [1, 10_000])
    def test_insert_in_a_later_commit_of_the_same_push_admits_an_update(
        self, rows_bytes_max: int
    ) -> None:
        """Rows are large: the second commit takes what the first has no room for, in order."""
        world = World(limits=Limits(commit_rows_bytes_max=rows_bytes_max))
        world.rules(bucket(MINE))
        world.push(insert("r1", owner="ann", at=1), delete("r1", at=5))
        made = (
            update("r1", title="b", at=7),
            insert("r2", owner="ann", at=6),
            insert("r3", owner="ann", at=6),
            insert("r1", owner="ann", at=6),
        )

        assert world.push(*made, sub="ann") == []
        assert truth(world)["todos", "r1"] == {"owner": "ann", "title": "b"}

    def test_updates_accepted_before_are_accepted_again_after_the_row_is_deleted(
        self, world: World
    ) -> None:
        world.push(insert("r2", owner="ann", at=1))
        early, late = update("r2", title="b", at=2), update("r2", title="c", at=9)
        assert world.push(early, late, sub="ann") == []
        world.push(delete("r2", at=5))
        world.push(insert("r3", owner="ann", at=1), update("r3", title="b", at=2), sub="ann")
        world.push(delete("r3", at=5))

        assert world.push(early, late, update("r3", title="b", at=2), sub="ann") == []

    @pytest.mark.parametrize("removes", [True, False])
    def test_late_delete_with_an_older_stamp_hides_the_row_from_all_clients(
        self, world: World, *, removes: bool
    ) -> None:
        """What is left of it has no owner. Its readers are told of the delete as well."""
        readers = [Reader("ann", removes=removes), Reader("bob")]
        world.push(insert("r2", owner="ann", title="a", at=1))
        world.push(update("r2", title="b", at=9), sub="ann")
        for reader in readers:
            reader.sync(world)
        world.push(delete("r2", at=5), sub="ann")
        for reader in readers:
            reader.sync(world)

        assert [reader.seen() for reader in readers] == [{}, {}]
        assert readers[0].sent[-2] == delete("r2", at=5)
        assert readers[1].sent == []

    def test_update_of_a_deleted_row_is_accepted_where_no_filter_applies(
        self, world: World
    ) -> None:
        world.rules(bucket(MINE), {"tables": [], "filters": []})

        assert world.push(update("r1", title="b", at=6), sub="ann") == []

    def test_update_of_a_deleted_row_by_a_connector_is_accepted(self, world: World) -> None:
        assert world.push(update("r1", title="b", at=6), trusted=True) == []

    def test_new_row_may_begin_with_an_update(self, world: World) -> None:
        assert world.push(update("r7", owner="ann", at=6), sub="ann") == []

    def test_update_of_a_row_whose_deletion_may_be_forgotten_must_make_it_visible(
        self, world: World
    ) -> None:
        config = world.buffer.config(GATEWAY)
        forgetting = replace(config, version=config.version + 1, tombstone_horizons={"todos": 3})
        head = world.buffer.heads(GATEWAY)["main"]
        world.buffer.save_config(GATEWAY, forgetting, head, head.lanes, head.commit + 1)

        assert world.push(update("r7", title="b", at=6), sub="ann") == ["ROW_DELETED"]
        assert world.push(update("r8", owner="ann", at=7), sub="ann") == []

    def test_insert_by_a_client_not_sent_the_filter_columns_does_not_revive_a_row(
        self, world: World
    ) -> None:
        hidden = {"tables": ["todos"], "columns": ["owner"], "except": []}
        world.rules(bucket(MINE), omit=[hidden])

        assert world.push(insert("r1", title="b", at=6), sub="ann") == ["ROW_DELETED"]
        assert world.push(insert("r9", title="b", at=7), sub="ann") == []


@pytest.mark.law("V4", "V10")
class TestWithoutAScope:
    @pytest.mark.parametrize("removes", [True, False])
    def test_pull_without_a_scope_does_not_name_rows_that_the_log_cannot_decide(
        self, world: World, *, removes: bool
    ) -> None:
        """Anybody may name a cursor; whoever names no scope may never have seen anything."""
        world.rules(bucket(MINE))
        first = world.buffer.heads(GATEWAY)["main"].commit
        world.push(insert("r1", owner="ann", state="secret", at=1))
        world.push(insert("r2", owner="ann", state="open", at=2))
        world.rules(bucket({"column": "state", "op": "eq", "value": "open"}))

        ann = Reader("ann", removes=removes, cursor=first)
        ann.sync(world)

        assert {delta.row_id for delta in ann.sent} == {"r2"}

    def test_client_without_a_scope_reads_again_after_rule_changes_without_naming_hidden_rows(
        self, world: World
    ) -> None:
        world.rules(bucket(MINE))
        ann = Reader("ann", limit=1)
        world.push(insert("r1", owner="ann", state="secret", at=1))
        world.push(insert("r2", owner="ann", state="open", at=2))
        ann.sync(world)
        world.push(insert("r3", owner="bob", state="secret", at=3))
        world.rules(bucket({"column": "state", "op": "eq", "value": "open"}))

        ann.scope, ann.sent = "", []
        ann.sync(world)

        assert set(ann.seen()) == {("todos", "r2")}
        assert {delta.row_id for delta in ann.sent} == {"r2"}
        ann.sent.clear()
        ann.sync(world)
        assert (ann.sent, ann.resyncs) == ([], [])

    def test_resync_continues_only_with_the_scope_of_its_last_page(self, world: World) -> None:
        world.rules(bucket(MINE))
        first = world.buffer.heads(GATEWAY)["main"].commit
        for number in (1, 2):
            world.push(insert(f"r{number}", owner="ann", state="open", at=number))
        world.rules(bucket({"column": "state", "op": "eq", "value": "open"}))
        pull = Reader("ann", limit=1, cursor=first).asks()
        page = world.pulls.pull(GATEWAY, pull)

        with pytest.raises(ValidationFailed) as refused:
            world.pulls.pull(GATEWAY, replace(pull, snapshot=page.snapshot))

        assert refused.value.field == "scope"


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
def test_each_client_holds_exactly_its_visible_rows_and_is_sent_nothing_else(
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
        else:
            sync(world, readers[how], rules, history, passing)
    for reader in readers:
        sync(world, reader, rules, history, passing)
        due = {key: row for key, row in truth(world).items() if may_see(rules, reader.sub, row)}
        assert reader.seen() == due


@pytest.mark.law("V5")
@given(
    st.lists(
        st.tuples(st.sampled_from(["ann", "bob"]), st.lists(edits, min_size=1, max_size=4)),
        max_size=12,
    ),
    st.randoms(use_true_random=False),
)
def test_without_write_filters_no_push_changes_rows_hidden_from_its_client(
    pushes: list[tuple[str, list[Any]]], chance: Random
) -> None:
    """Whatever stamps it carries; and so it brings nothing into its client's sight."""
    world = World()
    world.rules(bucket_without_write(MINE))
    for sub, edits in pushes:
        deltas = []
        for op, row, values in edits:
            make: Any = {"insert": insert, "update": update, "delete": delete}[op]
            at = at_ms(chance.randrange(20))
            deltas.append(make(row, at=at, client=sub, **({} if op == "delete" else values)))
        before = truth(world)
        world.push(*deltas, sub=sub)
        after = truth(world)
        hidden = {key for key, row in before.items() if row.get("owner") != sub}
        assert {key: after.get(key) for key in hidden} == {key: before[key] for key in hidden}


def sync(
    world: World,
    reader: Reader,
    rules: list[dict[str, Any]],
    history: list[dict[tuple[str, str], dict[str, Any]]],
    passing: list[Any],
) -> None:
    """Sync, and hold every value that is sent against what the rules show, of any commit."""
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
    if rules:
        for delta in reader.sent:
            for name, raw in delta.columns:
                assert ((delta.table, delta.row_id), name, parse(raw)) in allowed


@pytest.mark.law("V4")
@settings(max_examples=200)
@given(
    st.integers(0, len(RULES) - 1),
    st.lists(pushes | changes, min_size=2, max_size=12),
    st.sampled_from(["ann", "bob"]),
    st.booleans(),
)
def test_pull_without_a_scope_never_names_a_row_that_was_never_visible(
    first: int,
    happened: list[Any],
    sub: str,
    removes: bool,  # noqa: FBT001 - Hypothesis passes it by position
) -> None:
    world = World()
    rules = RULES[first]
    world.rules(*rules)
    states: list[dict[tuple[str, str], dict[str, Any]]] = []
    cursors = {1}
    number = 0
    for what, how in happened:
        if what == "rules":
            rules = RULES[how]
            world.rules(*rules)
        for op, row, values in how if what == "push" else ():
            number += 1
            makes = {"insert": insert, "update": update}.get(op)
            at = at_ms(0, number)
            world.push(makes(row, at=at, **values) if makes else delete(row, at=at))
            states.append(truth(world))
        cursors.add(world.buffer.heads(GATEWAY)["main"].commit)
    ever = {key for state in states for key, row in state.items() if may_see(rules, sub, row)}

    for cursor in cursors:
        prober = Reader(sub, removes=removes, cursor=cursor)
        prober.sync(world)

        named = {(delta.table, delta.row_id) for delta in prober.sent}
        assert not rules or named <= ever
