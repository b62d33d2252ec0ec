"""Re-sync: other rules or claims, and only the tables concerned are bootstrapped again."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from lakesync.core.layout import MAIN_LANE
from lakesync.core.messages import Resync
from lakesync.errors import Contention, CursorExpired
from tests.support.builders import insert
from tests.support.gateways import GATEWAY, MINE
from tests.support.lagging import LaggingBuffer
from tests.support.readers import Reader, World, bucket

if TYPE_CHECKING:
    from lakesync.ports import LogSlice

NOT_MINE = {"column": "owner", "op": "neq", "value": "jwt:sub"}


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.law("V10")
class TestResync:
    def test_changed_rules_remove_rows_that_they_no_longer_show(self, world: World) -> None:
        world.push(insert("r1", owner="bob", at=1), insert("r2", owner="ann", at=2))
        ann = Reader("ann")
        ann.sync(world)
        world.rules(bucket(MINE))
        ann.sync(world)

        assert ann.seen().keys() == {("todos", "r2")}
        assert ann.resyncs == [Resync(("todos",)), Resync((), ("todos",))]

    def test_resync_sends_only_tables_whose_rules_changed(self, world: World) -> None:
        lists = bucket(tables=["lists"])
        world.rules(bucket(MINE), lists)
        world.push(insert("r1", owner="ann", at=1), insert("r2", owner="bob", at=2))
        world.push(insert("l1", table="lists", owner="bob", at=3))
        ann = Reader("ann")
        ann.sync(world)
        ann.sent.clear()
        world.rules(bucket(NOT_MINE), lists)
        ann.sync(world)

        assert [(delta.table, delta.row_id) for delta in ann.sent] == [("todos", "r2")]
        assert ann.resyncs == [Resync(("todos",))]
        assert ann.seen().keys() == {("todos", "r2"), ("lists", "l1")}

    def test_resync_reports_the_tombstone_horizons(self, world: World) -> None:
        """A client may hold what it wrote into a row that it could not see being deleted."""
        world.push(insert("r1", owner="ann", at=1))
        ann = Reader("ann")
        ann.sync(world)
        config = world.buffer.config(GATEWAY)
        forgets = replace(
            config, version=config.version + 1, tombstone_horizons={"todos": 7, "lists": 8}
        )
        main = world.buffer.heads(GATEWAY)[MAIN_LANE]
        world.buffer.save_config(GATEWAY, forgets, main, main.lanes, main.commit + 1)
        world.rules(bucket(MINE, tables=["todos"]))
        ann.sync(world)

        assert [resync.tombstone_horizons for resync in ann.resyncs] == [{"todos": 7}, {}]

    def test_resync_of_named_tables_reads_no_log_entries(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        world.rules(bucket(MINE))
        for number in range(50):
            world.push(insert(f"r{number}", owner="ann", at=number + 1))
        world.time.now_ms += 120_000  # until then a row may look as it did before the rules
        world.push(insert("r50", owner="ann", at=51))
        ann = Reader("ann")
        ann.sync(world)
        spans: list[tuple[int, int]] = []
        read = world.buffer.entries

        def counted(gateway: str, shard: str, after: int, until: int, most: int) -> LogSlice:
            spans.append((after, until))
            return read(gateway, shard, after, until, most)

        monkeypatch.setattr(world.buffer, "entries", counted)
        ann.sub = "bob"
        ann.sync(world)

        assert ann.seen() == {}
        assert spans == []

    def test_resync_of_all_tables_reads_the_unflushed_log_once(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It may name tables that nothing else does, and tells so before the first page."""
        world.rules(bucket(MINE, tables=[]), bucket(tables=["events"]))
        for number in range(20):
            world.push(insert(f"r{number}", owner=("ann", "bob")[number % 2], at=number + 1))
        world.time.now_ms += 120_000  # until then a row may look as it did before the rules
        world.push(insert("r20", owner="ann", at=21))
        ann = Reader("ann", limit=1)
        ann.sync(world)
        spans: list[int] = []
        read = world.buffer.entries

        def counted(gateway: str, shard: str, after: int, until: int, most: int) -> LogSlice:
            spans.append(after)
            return read(gateway, shard, after, until, most)

        monkeypatch.setattr(world.buffer, "entries", counted)
        ann.sub = "bob"
        ann.sync(world)

        assert len(ann.seen()) == 10
        assert spans == [0]

    @pytest.mark.parametrize("lag", [1, 2])
    def test_resync_fails_rather_than_show_a_row_state_from_before_the_rules(
        self, lag: int
    ) -> None:
        """The log of before the rules would not tell that it has left."""
        buffer = LaggingBuffer()
        world = World(buffer)
        world.rules(
            bucket({"column": "title", "op": "eq", "value": "x"}, tables=["lists", "todos"])
        )
        world.push(insert("r1", owner="ann", at=1), insert("r2", owner="ann", at=2))
        ann = Reader("ann")
        ann.sync(world)
        world.push(insert("r1", owner="bob", at=3))
        world.rules(bucket(MINE))
        buffer.lag = lag
        with pytest.raises(Contention):
            ann.sync(world)
        buffer.lag = 0
        ann.sync(world)

        assert ann.seen().keys() == {("todos", "r2")}

    def test_second_rule_change_during_a_resync_resyncs_only_its_own_tables(
        self, world: World
    ) -> None:
        tables = ("lists", "other", "todos")

        def of(*mine: str) -> list[dict[str, Any]]:
            return [bucket(MINE, tables=[t]) if t in mine else bucket(tables=[t]) for t in tables]

        for number, table in enumerate(tables):
            for owner in ("ann", "bob"):
                world.push(insert(owner, table=table, owner=owner, at=number * 2 + 1))
        ann = Reader("ann", limit=1)
        world.rules(*of())
        ann.sync(world)
        world.rules(*of("lists", "other"))
        pages = world.pages(ann.asks())
        ann.take(page for page, _ in zip(pages, range(2), strict=False))
        world.rules(*of("lists", "todos"))
        ann.sent.clear()
        ann.sync(world)

        assert ann.resyncs == [Resync(("other",)), Resync(("todos",))]
        assert {delta.table for delta in ann.sent} == {"other", "todos"}
        assert ann.seen().keys() == {
            ("lists", "ann"), ("other", "ann"), ("other", "bob"), ("todos", "ann")
        }  # fmt: skip

    def test_changed_claims_expire_the_cursor_when_only_the_log_knows_a_table(
        self, world: World
    ) -> None:
        world.rules(bucket(MINE, tables=[]), bucket(tables=["events"]))
        world.push(insert("x1", table="unnamed", owner="ann", at=1))
        ann = Reader("ann")
        ann.sync(world)
        ann.sub = "bob"
        with pytest.raises(CursorExpired):
            world.pulls.pull(GATEWAY, ann.asks())

    def test_events_that_become_visible_are_read_from_the_log(self, world: World) -> None:
        world.rules(bucket(MINE, tables=["events"]))
        world.push(insert("e1", table="events", owner="ann", at=1))
        world.push(insert("e2", table="events", owner="bob", at=2))
        ann = Reader("ann")
        ann.sync(world)
        ann.sub = "bob"
        ann.sync(world)

        assert ann.seen().keys() == {("events", "e2")}

    def test_pull_with_an_unreadable_scope_returns_all_visible_rows(self, world: World) -> None:
        world.push(insert("r1", owner="ann", at=1))
        world.rules(bucket(MINE))
        ann = Reader("ann", cursor=1, scope="nonsense~")
        ann.sync(world)

        assert ann.seen().keys() == {("todos", "r1")}
