"""Followers, law by law, in small."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lakesync.compat.follower_state import unpack
from lakesync.compat.legacy_format import rows_of as rows_in_order
from lakesync.compat.progress import (
    CURSOR_PUSHED_BEFORE_PULL,
    DELIVERIES_ASSUMED_READ,
    RESEND_ROWS_MAX,
)
from lakesync.core.config import GatewayConfig
from lakesync.core.delta import Op, checked_delta
from lakesync.core.merge import EMPTY, fold, view
from lakesync.core.messages import Pull, Push
from lakesync.core.row_deltas import deltas_of as deltas_of_state
from tests.compat.older import WAIT_MS_MAX
from tests.compat.world import GATEWAY, MINE, OTHER_RULES, RULES, TABLE, Direct, World, deltas_of
from tests.support.builders import at_ms, delete, insert, update

if TYPE_CHECKING:
    from lakesync.core.delta import Delta
    from lakesync.core.messages import PullPage
    from lakesync.errors import LakeSyncError
    from tests.compat.older import OlderClient


@pytest.fixture
def world() -> World:
    return World()


def written(page: PullPage) -> list[tuple[str, str]]:
    return [(delta.op.name, delta.row_id) for delta in deltas_of(page)]


def rows_of(client: OlderClient) -> dict[str, dict[str, object]]:
    return {row_id: row for (_, row_id), row in client.rows.items()}


@pytest.mark.law("F1")
class TestReceipts:
    def test_what_others_pushed_between_a_pull_and_a_push_is_read_next(self, world: World) -> None:
        a, b = world.client("a"), world.client("b")
        a.sync()
        b.insert(TABLE, "r1", title="theirs")
        b.sync()
        a.insert(TABLE, "r2", title="mine")
        a.push()
        a.sync()

        assert rows_of(a) == {"r1": {"title": "theirs"}, "r2": {"title": "mine"}}
        assert a.failures == 0

    def test_who_never_pulled_is_led_to_the_beginning(self, world: World) -> None:
        world.write(insert("r0", at=at_ms(0), client="w"))
        a = world.client("a")
        a.insert(TABLE, "r1", title="mine")
        a.push()

        assert a.cursor == CURSOR_PUSHED_BEFORE_PULL
        a.sync()
        assert set(rows_of(a)) == {"r0", "r1"}
        assert a.failures == 0

    def test_where_there_was_nothing_a_receipt_goes_ahead(self, world: World) -> None:
        a = world.client("a", "x")
        world.save_rules(RULES)
        world.write(insert("r0", at=at_ms(0), client="w", owner="y"))
        a.sync()
        assert a.cursor == 0
        a.insert(TABLE, "r1", owner="x")
        a.push()

        assert a.cursor > CURSOR_PUSHED_BEFORE_PULL
        a.sync()
        assert rows_of(a) == {"r1": {"owner": "x"}}

    def test_who_pushes_in_every_round_gets_on(self, world: World) -> None:
        a = world.client("a")
        for number in range(40):
            world.write(insert(f"w{number}", at=at_ms(number), client="w", title="x"))
        sent = []
        for number in range(6):
            a.insert(TABLE, f"a{number}", title="x")
            a.pull()
            sent.append(a.deltas_applied)
            a.push()

        assert len(rows_of(a)) == 46
        assert sent[DELIVERIES_ASSUMED_READ] < sent[0]
        assert max(sent[DELIVERIES_ASSUMED_READ:]) < 20

    def test_what_was_only_assumed_is_sent_again_when_it_rests(self, world: World) -> None:
        a = world.client("a")
        world.write(insert("r1", at=at_ms(0), client="w", title="x"))
        for number in range(5):
            world.pull("a", a.cursor)  # lost
            a.insert(TABLE, f"a{number}")
            a.push()
        assert "r1" not in rows_of(a)
        for _ in range(4):
            a.sync()

        assert rows_of(a)["r1"] == {"title": "x"}
        assert a.failures == 0

    def test_two_answers_that_are_lost_prove_nothing(self, world: World) -> None:
        a = world.client("a")
        world.write(insert("r0", at=at_ms(0), client="w"))
        a.sync()
        world.write(insert("r1", at=at_ms(1), client="w"))
        for _ in range(2):
            world.pull("a", a.cursor)
        a.insert(TABLE, "r2")
        a.push()
        a.sync()

        assert set(rows_of(a)) == {"r0", "r1", "r2"}

    def test_a_first_session_that_loses_a_receipt_keeps_no_deleted_row(self, world: World) -> None:
        a, b = world.client("a"), world.client("b")
        a.sync()
        a.insert(TABLE, "r1", title="mine")
        line = a.line
        assert isinstance(line, Direct)
        line.chance = Always()  # type: ignore[assignment]
        a.push()
        line.chance = None
        b.sync()
        b.delete(TABLE, "r1")
        b.sync()
        for _ in range(4):
            world.time.now_ms += WAIT_MS_MAX
            a.sync()

        assert rows_of(a) == {}

    @pytest.mark.law("F8")
    def test_a_void_cursor_is_led_on_by_rows_as_they_are(self, world: World) -> None:
        a = world.client("a")
        world.write(insert("r0", at=at_ms(0), client="w"), insert("r1", at=at_ms(1), client="w"))
        a.sync()
        world.write(delete("r0", at=at_ms(2), client="w"), insert("r2", at=at_ms(3), client="w"))
        world.trim()
        for _ in range(3):
            a.sync()

        assert set(rows_of(a)) == {"r1", "r2"}
        assert a.failures == 0

    @pytest.mark.law("F8")
    def test_any_size_is_read_page_by_page_where_the_log_is_gone(self, world: World) -> None:
        for number in range(25):
            world.write(insert(f"r{number:02}", at=at_ms(number), client="w", title="x"))
        world.trim()
        a = world.client("a")
        applied = []
        for number in range(40):
            if number == 5:
                a.restart()
            if number == 3:
                a.insert(TABLE, "mine")
            a.sync(limit=4)
            applied.append(a.deltas_applied)

        assert set(rows_of(a)) == {*(f"r{number:02}" for number in range(25)), "mine"}
        assert a.failures == 0
        # It begins without deletions, and ends.
        assert applied[0] == 4
        assert applied[-1] == 0


@pytest.mark.law("F9")
class TestDeleteWins:
    @pytest.fixture
    def world(self) -> World:
        return World(delete_wins=True)

    def test_its_own_late_edit_is_answered_by_the_row_s_removal(self, world: World) -> None:
        a = world.client("a")
        world.write(insert("r1", at=at_ms(0), client="w", title="one"))
        a.sync()
        world.write(delete("r1", at=at_ms(1), client="w"))
        a.pull()
        assert rows_of(a) == {}
        late = update("r1", at=at_ms(5), client="a", title="late")
        a.rows[TABLE, "r1"] = {"title": "late"}  # what it has, whatever led to it
        a.queue.append(late)
        a.sync()
        a.sync()

        assert rows_of(a) == {}
        assert a.failures == 0
        assert view(world.state("r1")) == {"title": b'"late"'}, "the edit is kept, and not seen"

    def test_an_edit_that_was_made_before_it_heard_of_the_delete(self, world: World) -> None:
        a = world.client("a")
        world.write(insert("r1", at=at_ms(0), client="w", title="one"))
        a.sync()
        world.write(delete("r1", at=at_ms(1), client="w"))
        a.update(TABLE, "r1", title="late")
        a.push()
        for _ in range(3):
            a.sync()

        assert rows_of(a) == {}

    def test_others_are_not_sent_an_edit_that_would_show_the_row(self, world: World) -> None:
        a, b = world.client("a"), world.client("b")
        world.write(insert("r1", at=at_ms(0), client="w", title="one"))
        a.sync()
        b.sync()
        world.write(delete("r1", at=at_ms(1), client="w"))
        world.write(update("r1", at=at_ms(5), client="w", title="late"))
        assert written(world.pull("a", a.cursor)) == [("DELETE", "r1")]
        a.sync()
        world.write(update("r1", at=at_ms(6), client="w", state="later"))
        assert written(world.pull("a", a.cursor)) == [("DELETE", "r1")]
        a.sync()
        fresh = world.client("c")
        for client in (b, fresh):
            client.sync()

        assert rows_of(a) == rows_of(b) == rows_of(fresh) == {}

    def test_an_insert_brings_the_row_with_what_is_newer_than_the_delete(
        self, world: World
    ) -> None:
        a = world.client("a")
        world.write(insert("r1", at=at_ms(0), client="w", title="one", owner="o"))
        a.sync()
        world.write(delete("r1", at=at_ms(1), client="w"))
        world.write(update("r1", at=at_ms(5), client="w", title="late"))
        a.sync()
        world.write(insert("r1", at=at_ms(4), client="w", state="back"))
        a.sync()

        assert rows_of(a) == {"r1": {"title": "late", "state": "back"}}
        assert a.failures == 0


@pytest.mark.law("F2")
class TestInOrder:
    def test_what_is_new_is_sent_as_it_was_pushed(self, world: World) -> None:
        world.client("a")
        made = [
            insert("r1", at=at_ms(0), client="w", title="one"),
            update("r1", at=at_ms(1), client="w", title="two"),
            insert("r2", at=at_ms(2), client="w"),
            delete("r2", at=at_ms(3), client="w"),
        ]
        world.write(*made)

        assert deltas_of(world.pull("a", 0)) == made

    def test_the_first_page_may_be_asked_for_again_by_who_holds_nothing(self, world: World) -> None:
        world.client("a")
        world.write(insert("r1", at=at_ms(0), client="w"), insert("r2", at=at_ms(1), client="w"))

        assert written(world.pull("a", 0)) == written(world.pull("a", 0)) == [
            ("INSERT", "r1"), ("INSERT", "r2")
        ]  # fmt: skip

    def test_who_comes_with_a_page_s_cursor_is_sent_what_was_pushed(self, world: World) -> None:
        a = world.client("a")
        a.insert(TABLE, "r1", title="one")
        a.push()
        first = world.pull("a", 0).cursor
        a.insert(TABLE, "r2", title="two")
        a.push()

        assert written(world.pull("a", first)) == [("INSERT", "r2")]

    def test_what_may_have_been_given_is_sent_as_it_is(self, world: World) -> None:
        a = world.client("a")
        world.write(insert("r1", at=at_ms(0), client="w", title="one", state="open"))
        a.sync()
        world.write(update("r1", at=at_ms(1), client="w", title="two"))
        a.pull()
        a.insert(TABLE, "r2")
        a.push()
        again = [delta for delta in deltas_of(world.pull("a", a.cursor)) if delta.row_id == "r1"]

        assert [delta.op.name for delta in again] == ["DELETE", "INSERT", "UPDATE"]
        assert dict(again[2].columns) == {"state": b'"open"', "title": b'"two"'}
        assert again[0].hlc < again[1].hlc < at_ms(0)

    @pytest.mark.law("M9")
    def test_a_row_larger_than_a_delta_may_be_is_an_insert_and_updates(self, world: World) -> None:
        half = "x" * 150_000
        a = world.client("a")
        world.write(insert("r1", at=at_ms(0), client="w", title=half))
        a.sync()
        world.write(update("r1", at=at_ms(1), client="w", state=half))
        a.pull()
        a.insert(TABLE, "r2")
        a.push()
        again = [delta for delta in deltas_of(world.pull("a", a.cursor)) if delta.row_id == "r1"]
        a.sync()

        assert [delta.op.name for delta in again] == ["DELETE", "INSERT", "UPDATE", "UPDATE"]
        assert all(delta == checked_delta(*delta[:6]) for delta in again)
        assert rows_of(a)["r1"] == {"title": half, "state": half}
        assert a.failures == 0

    @pytest.mark.parametrize(
        ("changes", "left"),
        [
            # A late edit loses the column that was written after it.
            (
                [
                    update(at=at_ms(9), client="w", title="new"),
                    update(at=at_ms(5), client="v", title="old", state="s"),
                ],
                {"title": "new", "state": "s", "owner": "o"},
            ),
            # A delete that is older than an edit does not end the row, but what was before it.
            (
                [
                    update(at=at_ms(9), client="w", title="new"),
                    delete(at=at_ms(5), client="v"),
                ],
                {"title": "new"},
            ),
            # An edit that is newer than the delete brings the row back.
            (
                [delete(at=at_ms(5), client="v"), update(at=at_ms(9), client="w", state="s")],
                {"state": "s"},
            ),
            # A second insert of the row.
            (
                [insert(at=at_ms(9), client="v", title="two")],
                {"title": "two", "owner": "o"},
            ),
        ],
    )
    def test_what_would_lead_elsewhere_in_order_is_sent_as_it_is(
        self, world: World, changes: list[Delta], left: dict[str, str]
    ) -> None:
        a = world.client("a")
        world.write(insert(at=at_ms(0), client="w", title="first", owner="o"))
        a.sync()
        for change in changes:
            world.write(change)
        a.sync()

        assert rows_of(a) == {"r1": left}
        assert a.rows == world.visible("a", ["r1"])

    def test_a_row_that_began_with_an_edit_is_there(self, world: World) -> None:
        a = world.client("a")
        world.write(update("r9", at=at_ms(1), client="w", state="s"))
        a.sync()

        assert rows_of(a) == {"r9": {"state": "s"}}

    @pytest.mark.parametrize("again", [False, True])
    def test_a_whole_row_is_right_however_large_it_is(self, *, again: bool) -> None:
        half = "x" * 150_000
        state = fold([insert(at=at_ms(1), title=half), update(at=at_ms(2), owner=half)])
        ((*before, first, second),) = rows_in_order(
            deltas_of_state(TABLE, "r1", state), GatewayConfig(), again=again
        )

        assert all(delta == checked_delta(*delta[:6]) for delta in (*before, first, second))
        assert [delta.op.name for delta in before] == ["DELETE", "INSERT"] * again
        assert (first.op.name, second.op.name) == ("UPDATE" if again else "INSERT", "UPDATE")
        assert first.hlc == second.hlc
        assert {name for delta in (first, second) for name, _ in delta.columns} == {
            "title",
            "owner",
        }

    def test_its_own_edits_come_back_merged(self, world: World) -> None:
        a = world.client("a")
        a.sync()
        a.insert(TABLE, "r1", title="mine")
        a.push()
        world.write(update("r1", at=at_ms(1), client="w", state="theirs"))
        a.sync()

        assert rows_of(a) == {"r1": {"title": "mine", "state": "theirs"}}

    def test_a_restart_with_rows_on_disk_is_harmless(self, world: World) -> None:
        a = world.client("a")
        world.write(insert("r1", at=at_ms(0), client="w", title="x"))
        a.sync()
        a.sync()
        a.restart()
        a.sync()

        assert a.failures == 0
        assert rows_of(a) == {"r1": {"title": "x"}}


@pytest.mark.law("F6")
class TestRefusals:
    def test_what_is_refused_is_reported_and_then_taken_back(self, world: World) -> None:
        a = world.client("a", "x")
        world.save_rules(RULES)
        a.sync()
        a.insert(TABLE, "r1", owner="x", nothing="of the schema")
        a.insert(TABLE, "r2", owner="x")
        a.push()

        assert [error.code for error in refusals(a)] == ["SCHEMA_ERROR"]
        assert world.visible("a", ["r1", "r2"]) == {(TABLE, "r2"): {"owner": "x"}}
        assert len(a.queue) == 2
        for _ in range(14):
            world.time.now_ms += WAIT_MS_MAX
            a.sync()
        assert "r1" in {delta.row_id for delta in a.given_up}
        assert rows_of(a) == {"r2": {"owner": "x"}}

    @pytest.mark.parametrize("first", [TABLE, "notes"])
    def test_another_spelling_of_a_table_is_answered_with_the_rows_of_the_first(
        self, world: World, first: str
    ) -> None:
        """On a device both are one table: a DELETE under the other would delete the row."""
        if first == TABLE:
            world.write(insert("r1", title="kept", at=at_ms(0), client="w"))
        a = world.client("a", "x")
        a.sync()
        if first != TABLE:
            a.insert(first, "r1", title="kept")
        a.insert(first.upper(), "r1", title="mine")
        a.insert(first.upper(), "r3", unreadable="mine")
        a.insert(first.upper(), "r2", title="mine")
        a.push()

        assert [error.code for error in refusals(a)] == ["NAME_TAKEN"]
        deltas = deltas_of(world.pull("a", a.cursor))
        assert {delta.table for delta in deltas} == {first}
        state = fold([delta for delta in deltas if delta.row_id == "r1"], EMPTY)
        assert view(state) == {"title": b'"kept"'}
        assert {delta.row_id for delta in deltas if delta.op is Op.DELETE} >= {"r2", "r3"}

    def test_what_is_accepted_and_hidden_is_taken_back(self, world: World) -> None:
        a = world.client("a", "x")
        world.save_rules(RULES)
        a.insert(TABLE, "r1", owner="x")
        a.sync()
        a.update(TABLE, "r1", owner="y")
        a.push()
        assert not a.queue
        a.sync()

        assert rows_of(a) == {}

    def test_a_clock_that_is_ahead_loses_nothing(self, world: World) -> None:
        a = world.client("a", ahead_ms=40_000)
        a.sync()
        a.insert(TABLE, "r1", title="mine")
        for _ in range(6):
            a.sync()
            assert rows_of(a) == {"r1": {"title": "mine"}}
            world.time.now_ms += 15_000

        assert refusals(a)[0].status == 409
        assert not a.queue
        assert not a.given_up
        assert world.visible("a", ["r1"]) == a.rows

    def test_a_clock_that_is_far_ahead_is_reported_and_taken_back(self, world: World) -> None:
        a = world.client("a", ahead_ms=3_600_000)
        a.sync()
        a.insert(TABLE, "r1", title="mine")
        for _ in range(140):
            a.sync()
            world.time.now_ms += WAIT_MS_MAX

        assert [delta.row_id for delta in a.given_up] == ["r1"]
        assert rows_of(a) == {}

    def test_an_edit_that_loses_at_once_is_corrected(self, world: World) -> None:
        a = world.client("a", ahead_ms=-60_000)
        world.write(insert("r1", at=at_ms(0), client="w", title="theirs"))
        a.sync()
        a.update(TABLE, "r1", title="mine")
        a.push()
        assert not a.queue
        a.sync()

        assert rows_of(a) == {"r1": {"title": "theirs"}}

    def test_more_than_can_be_remembered_is_all_sent_again(self, world: World) -> None:
        a = world.client("a", ahead_ms=-60_000)
        names = [f"r{number}" for number in range(RESEND_ROWS_MAX + 50)]
        world.write(*[insert(name, at=at_ms(0), client="w", title="theirs") for name in names])
        a.sync()
        for name in names:
            a.update(TABLE, name, title="mine")
        while a.queue:
            a.push()
        for _ in range(6):
            a.sync()

        assert {row["title"] for row in rows_of(a).values()} == {"theirs"}

    def test_rows_larger_than_a_page_come_one_after_the_other(self, world: World) -> None:
        a = world.client("a", ahead_ms=-60_000)
        names = [f"r{number}" for number in range(6)]
        world.write(*[insert(n, at=at_ms(0), client="w", title="x" * 1_000) for n in names])
        a.sync()
        for name in names:
            a.update(TABLE, name, title="mine")
        a.push()
        pages = []
        for _ in range(10):
            a.pull(bytes_max=2_500)
            pages.append(a.deltas_applied)

        assert {row["title"] for row in rows_of(a).values()} == {"x" * 1_000}
        assert max(pages) <= 6


def refusals(client: OlderClient) -> list[LakeSyncError]:
    assert isinstance(client.line, Direct)
    return client.line.refusals


class Always:
    """Chance that loses every answer."""

    def random(self) -> float:
        return 0.0


@pytest.mark.law("F3")
def test_a_new_token_brings_and_takes_rows(world: World) -> None:
    world.save_rules(RULES)
    a = world.client("a", "x")
    for number, owner in enumerate("xyz"):
        world.write(insert(f"r{number}", at=at_ms(number), client="w", owner=owner))
    a.sync()
    assert set(rows_of(a)) == {"r0"}
    a.sync()
    world.claims["a"] = {"sub": "a", "teams": ["y"]}
    for _ in range(3):
        a.sync()

    assert set(rows_of(a)) == {"r1"}
    assert a.failures == 0


@pytest.mark.law("F10")
class TestTablesThatAnAppIsMadeWithout:
    @pytest.mark.parametrize("pushes", [False, True])
    @pytest.mark.parametrize("rounds", [1, 2, 8])
    def test_rules_that_hide_it_free_an_app_that_met_it(
        self, world: World, rounds: int, *, pushes: bool
    ) -> None:
        a = world.client("a", "x")
        a.tables = frozenset({TABLE})
        world.write(insert("r1", at=at_ms(0), client="w", owner="x"))
        a.sync()
        world.write(insert("n1", at=at_ms(1), client="w", table="notes", owner="x"), trusted=True)
        world.write(insert("r2", at=at_ms(2), client="w", owner="x"))
        for number in range(rounds):
            if pushes:
                a.insert(TABLE, f"mine{number}", owner="x")
            a.sync()
        assert a.failures
        assert "r2" not in rows_of(a)

        world.save_rules(RULES)
        world.write(insert("n2", at=at_ms(3), client="w", table="notes", owner="x"), trusted=True)
        for _ in range(10):
            world.time.now_ms += 60_000
            a.sync()
        failures = a.failures
        world.write(delete("n1", at=at_ms(4), client="w", table="notes"), trusted=True)
        for _ in range(3):
            a.sync()

        assert {"r1", "r2"} <= set(rows_of(a))
        assert a.failures == failures

    def test_nothing_of_a_table_that_no_bucket_names_is_sent_to_who_never_had_any(
        self, world: World
    ) -> None:
        """Whatever rules read before, and wherever its cursor is from."""
        a = world.client("a", "x")
        a.tables = frozenset({TABLE})
        world.save_rules(RULES)
        world.write(insert("r1", at=at_ms(0), client="w", owner="x", state="open"))
        a.sync()
        world.write(
            insert("n1", at=at_ms(1), client="w", table="notes", owner="x", state="open"),
            trusted=True,
        )
        filters = [{"column": "state", "op": "eq", "value": "jwt:state"}]
        notes = {"name": "notes", "tables": ["notes"], "filters": filters}
        mine = {"name": "mine", "tables": [TABLE], "filters": [MINE]}
        world.save_rules({"version": 1, "buckets": [mine, notes]})
        world.write(
            update("n1", at=at_ms(2), client="w", table="notes", state="hidden"), trusted=True
        )
        a.sync()
        world.save_rules(OTHER_RULES)
        world.write(delete("n1", at=at_ms(3), client="w", table="notes"), trusted=True)
        for _ in range(4):
            a.sync()

        assert a.failures == 0
        assert set(rows_of(a)) == {"r1"}

    def test_rows_of_a_table_that_it_has_are_taken_back(self, world: World) -> None:
        a = world.client("a", "x")
        world.write(insert("r1", at=at_ms(0), client="w", owner="x"))
        world.write(insert("n1", at=at_ms(1), client="w", table="notes", owner="x"), trusted=True)
        a.sync()
        assert ("notes", "n1") in a.rows
        world.save_rules(RULES)
        for _ in range(4):
            a.sync()

        assert set(a.rows) == {(TABLE, "r1")}

    def test_so_are_rows_of_a_table_that_it_pushed_to(self, world: World) -> None:
        a = world.client("a", "x")
        a.insert("notes", "n1", owner="x")
        a.sync()
        a.sync()
        world.save_rules(RULES)
        for _ in range(4):
            a.sync()

        assert a.rows == {}

    def test_and_rows_that_it_has_from_a_checkpoint(self, world: World) -> None:
        a = world.client("a", "x")
        world.write(insert("n1", at=at_ms(1), client="w", table="notes", owner="x"), trusted=True)
        a.rows["notes", "n1"] = {"owner": "x"}
        a.cursor = world.buffer.heads(GATEWAY)["main"].commit  # as the checkpoint says
        a.sync()
        world.write(insert("r1", at=at_ms(2), client="w", owner="x"))
        a.sync()
        world.save_rules(RULES)
        world.write(update("n1", at=at_ms(3), client="w", table="notes", owner="y"), trusted=True)
        for _ in range(4):
            a.sync()

        assert set(a.rows) == {(TABLE, "r1")}

    def test_its_state_stays_small(self, world: World) -> None:
        a = world.client("a", "x")
        for number in range(30):
            table = f"t{number % 3}"
            world.write(
                insert(f"r{number}", at=at_ms(number), client="w", table=table), trusted=True
            )
            a.sync()
        stored = unpack(world.buffer.client_state(GATEWAY, "a"))

        assert stored is not None
        assert {*stored.tables, *stored.sent_tables, *stored.page_tables} == {"t0", "t1", "t2"}
        assert len([*stored.tables, *stored.sent_tables]) == 3


@pytest.mark.law("F4")
@pytest.mark.parametrize(
    "marks",
    [
        {"own_cursor": True},
        {"removes": True},
        {"epoch": ...},
        {"scope": "*"},
        {"snapshot": "begin"},
    ],
)
def test_one_mark_of_ours_and_nothing_is_remembered(world: World, marks: dict[str, object]) -> None:
    world.client("a")
    world.write(insert("r1", at=at_ms(0), client="w"))
    asked = Pull("a", 0, own_cursor=False)
    if "epoch" in marks:
        marks = {"epoch": world.pulls.pull(GATEWAY, Pull("b")).epoch}
    world.pulls.pull(GATEWAY, Pull(**{"client_id": "a", "own_cursor": False} | marks))  # type: ignore[arg-type]
    assert world.buffer.client_state(GATEWAY, "a") is None

    world.pulls.pull(GATEWAY, asked)
    assert world.buffer.client_state(GATEWAY, "a") is not None


@pytest.mark.law("F4")
@pytest.mark.parametrize("marks", [{"own_cursor": True}, {"atomic": True}, {"epoch": ""}])
def test_a_push_with_a_mark_of_ours_is_answered_by_its_commit(
    world: World, marks: dict[str, object]
) -> None:
    made = insert("r1", at=at_ms(0), client="a")
    push = Push(**{"client_id": "a", "deltas": ((0, made),), "own_cursor": False} | marks)  # type: ignore[arg-type]

    assert world.pushes.push(GATEWAY, push).server_hlc > CURSOR_PUSHED_BEFORE_PULL


@pytest.mark.law("F5")
def test_what_was_empty_is_not_read_again(world: World) -> None:
    world.save_rules(RULES)
    a = world.client("a", "x")
    for number in range(50):
        world.write(insert(f"r{number}", at=at_ms(number), client="w", owner="y"))
    a.sync()
    a.sync()
    read: list[int] = []
    entries = world.buffer.entries

    def counted(gateway: str, shard: str, after: int, until: int, count_max: int) -> object:
        log = entries(gateway, shard, after, until, count_max)
        read.append(len(log.entries))
        return log

    world.buffer.entries = counted  # type: ignore[method-assign, assignment]
    a.sync()
    world.write(insert("mine", at=at_ms(99), client="w", owner="x"))
    a.sync()

    assert a.cursor > CURSOR_PUSHED_BEFORE_PULL
    assert set(rows_of(a)) == {"mine"}
    assert sum(read) <= 3
