"""What a source shows exists, whatever was found deleted before because it was not shown."""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakesync.connectors import Change, SourcePage, state
from lakesync.result import Ok
from tests.connectors.test_poll import World
from tests.connectors.test_webhooks import JiraWorld
from tests.support.dlt_sources import Api
from tests.support.gateways import pulled
from tests.support.lake import Killed
from tests.support.sources import MemorySource, SqlSource
from tests.support.vendors import world as vendors
from tests.support.vendors.jira import JiraServer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lakesync.errors import LakeSyncError
    from lakesync.result import Result
    from tools.local_stack.databases import Database


SHOWN = st.lists(
    st.tuples(st.sampled_from(["edit", "hide", "show"]), st.sampled_from("abc")), max_size=14
)


class ComparingSource(MemorySource):
    """A source that shows rows with their own times, and of which deletions are noticed by look."""

    def __init__(self) -> None:
        super().__init__()
        self.all: dict[str, Change] = {}
        self.shown: dict[str, Change] = {}
        self.given: dict[str, Change] = {}

    def do(self, deed: str, row_id: str, value: int) -> None:
        """Edit a row, seen or not, or change whether it is seen."""
        self.clock_us += 7
        if deed == "edit" or row_id not in self.all:
            self.all[row_id] = Change(row_id, {"value": value}, self.clock_us)
        if deed == "hide":
            self.shown.pop(row_id, None)
        elif deed == "show" or row_id in self.shown:
            self.shown[row_id] = self.all[row_id]

    def read(
        self, table: str, cursor: str, *, rows_max: int, poll_ms: int
    ) -> Result[SourcePage, LakeSyncError]:
        """Return what differs from what was shown before, as it was written down in this poll."""
        del table, cursor, rows_max
        if self.at_ms != poll_ms:
            gone = [Change(row_id, None) for row_id in self.given if row_id not in self.shown]
            self.page = (
                *gone,
                *(each for row_id, each in self.shown.items() if self.given.get(row_id) != each),
            )
            self.at_ms, self.given = poll_ms, dict(self.shown)
        return Ok(SourcePage(self.page, "read", has_more=False))

    at_ms = 0
    page: tuple[Change, ...] = ()


@pytest.mark.law("N1", "N2", "N18")
@given(st.lists(SHOWN, min_size=1, max_size=4), st.lists(st.integers(1, 12), max_size=4))
def test_rows_equal_what_the_source_shows_after_any_deletions_and_kills(
    polls: list[list[tuple[str, str]]], kills: list[int]
) -> None:
    source = ComparingSource()
    world = World(source=source)
    number = 0
    for deeds in polls:
        for deed, row_id in deeds:
            number += 1
            source.do(deed, row_id, number)
        for steps in kills:
            world.steps_left = steps
            with suppress(Killed):
                world.poll()
        world.steps_left = 1_000_000
        assert world.poll().status == "done"

    assert world.poll().status == "done"
    assert world.rows() == {row_id: each.columns["value"] for row_id, each in source.shown.items()}  # type: ignore[index]


@pytest.mark.law("N3", "N18")
def test_reappeared_row_is_stamped_once_and_a_later_edit_wins() -> None:
    world = World()
    at_us = world.source.clock_us
    row = Change("a", {"value": 1}, at_us)
    world.source.log += [row, Change("a", None)]
    world.poll()
    assert world.rows() == {}
    world.source.log += [row, row]
    world.poll()
    assert world.rows() == {"a": 1}
    given_ = len(pulled(world.buffer, "g"))
    world.source.log += [row]
    world.poll()
    assert len(pulled(world.buffer, "g")) == given_
    world.source.log += [Change("a", {"value": 2}, at_us + 1), row]
    world.poll()
    assert world.rows() == {"a": 2}, "it was edited while it was hidden, and found late"
    world.source.log += [Change("a", None), Change("a", {"value": 2}, at_us + 1)]
    world.poll()

    assert world.rows() == {"a": 2}


@pytest.mark.law("N18")
def test_oldest_noted_deletions_are_dropped_above_the_maximum(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(state, "NOTED_DELETIONS_MAX", 2)
    world = World()
    for number in range(100):
        world.source.put({f"{number}": number})
        world.source.log.append(Change(f"{number}", None))
        world.poll()
    noted = [
        len(json.loads(body)) for key, body in world.objects.bodies.items() if "/deletions/" in key
    ]
    world.source.log.append(world.source.log[-2])
    world.poll()

    assert (max(noted), world.rows()) == (2, {"99": 99})


@pytest.fixture
def site() -> Iterator[JiraServer]:
    with JiraServer() as running:
        yield running


TABLES = {"issues": "i", "comments": "c"}


def assert_same(site: JiraServer, world: vendors.World) -> None:
    seen = {each.id: each for each in site.issues.values() if each.id not in site.hidden}
    issues = {row_id: row["summary"] for row_id, row in world.rows("issues").items()}
    assert issues == {row_id: each.fields["summary"] for row_id, each in seen.items()}
    comments = {comment["id"] for each in seen.values() for comment in each.comments}
    assert set(world.rows("comments")) == comments


@pytest.mark.law("N10", "N18")
@pytest.mark.parametrize("edited", [False, True])
def test_issue_hidden_by_permission_reappears_with_its_comments(
    site: JiraServer, *, edited: bool
) -> None:
    world = vendors.World(site, TABLES)
    site.put({"1": "first", "2": "second"})
    site.comment("1", "hello")
    world.poll_to_the_end()
    for _ in range(2):
        site.hidden = {"1"}
        world.poll_to_the_end()
        assert_same(site, world)
        if edited:
            site.change("1", summary="edited unseen")
        site.clock += timedelta(hours=1)
        site.hidden = set()
        world.poll_and_die(range(2, 40, 3))
        world.poll_to_the_end()
        assert_same(site, world)
    before = world.deltas()
    world.poll_to_the_end()

    assert world.deltas() == before, "at rest nothing is new"


@pytest.mark.law("N10", "N18")
@pytest.mark.parametrize("by_webhook", [False, True])
def test_row_found_deleted_reappears_after_a_reset_or_a_webhook(
    site: JiraServer, *, by_webhook: bool
) -> None:
    world = JiraWorld(site)
    site.put({"1": "first"})
    world.time.now_ms = site.now_s() * 1000 + 1
    world.poll()
    site.hidden = {"1"}
    world.poll()
    assert world.came == [("1", "INSERT"), ("1", "DELETE")]
    site.hidden = set()
    if by_webhook:
        site.clock += timedelta(minutes=1)
        world.tell_of("jira:issue_updated", "1")
    else:
        world.by_hand.admin.reset("g", "shop")
        world.poll()
    assert world.came[2:] == [("1", "INSERT")]
    world.poll()

    assert world.came[3:] == [], "a poll gives what the webhook gave"


@pytest.mark.law("N15", "N18")
def test_dlt_row_missing_once_reappears_with_its_own_time() -> None:
    class Timed(Api):
        """An API of all orders, which says when each changed."""

        def connector(self, **more: Any) -> Any:
            hints = {"write_disposition": "replace"}
            tables = [{"name": "orders", "changedAt": "updated", "hints": hints}]
            self.resource["endpoint"].pop("incremental", None)
            self.resource["endpoint"]["params"] = {}
            return super().connector(tables=tables, **more)

    with Timed(by_time=True) as api:
        world = vendors.World(api, {"orders": "o"})
        api.put({"1": "a", "2": "b"})
        world.poll_to_the_end()
        missing = api.rows.pop("1")
        world.poll_to_the_end()
        assert set(world.rows("orders")) == {"2"}
        api.rows["1"] = missing
        world.poll_to_the_end()

        assert set(world.rows("orders")) == {"1", "2"}


@pytest.mark.emulator
@pytest.mark.law("N5", "N18")
def test_row_deleted_by_difference_reappears_when_polled_by_time(postgres: Database) -> None:
    source = SqlSource(postgres, "postgres", by_time=False)
    world = vendors.World(source, {source.table: "t"})
    source.put({"1": "a", "2": "b"})
    world.poll_to_the_end()
    source.run(f"CREATE TABLE aside{source.table} AS SELECT * FROM {source.table} WHERE id = 1")  # noqa: S608
    source.delete("1")
    world.poll_to_the_end()
    assert set(world.rows(source.table)) == {"2"}
    source.run(f"INSERT INTO {source.table} SELECT * FROM aside{source.table}")  # noqa: S608
    polled = source.settings.tables[0].model_copy(update={"cursor_column": "changed"})
    source.settings = source.settings.model_copy(update={"tables": [polled]})
    world.poll_to_the_end()
    source.run(f"DROP TABLE aside{source.table}")
    source.close()

    assert set(world.rows(source.table)) == {"1", "2"}
