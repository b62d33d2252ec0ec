"""Followers, law by law, in small."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lakesync.compat.follower_deltas import rows_of as rows_in_order
from lakesync.compat.follower_progress import (
    CURSOR_PUSHED_BEFORE_PULL,
    DELIVERIES_ASSUMED_READ,
    RESEND_ROWS_MAX,
    unpack,
)
from lakesync.core.config import GatewayConfig
from lakesync.core.delta import Op, checked_delta
from lakesync.core.merge import EMPTY, fold, view
from lakesync.core.merge import deltas_of as deltas_of_state
from lakesync.core.messages import Pull, Push
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
    def test_commits_between_a_followers_pull_and_push_are_read_next(self, world: World) -> None:
        a, b = world.client("a"), world.client("b")
        a.sync()
        b.insert(TABLE, "r1", title="theirs")
        b.sync()
        a.insert(TABLE, "r2", title="mine")
        a.push()
        a.sync()

        assert rows_of(a) == {"r1": {"title": "theirs"}, "r2": {"title": "mine"}}
        assert a.failures == 0

    def test_follower_that_pushed_before_pulling_reads_from_the_beginning(
        self, world: World
    ) -> None:
        world.write(insert("r0", at=at_ms(0), client="w"))
        a = world.client("a")
        a.insert(TABLE, "r1", title="mine")
        a.push()

        assert a.cursor == CURSOR_PUSHED_BEFORE_PULL
        a.sync()
        assert set(rows_of(a)) == {"r0", "r1"}
        assert a.failures == 0

    def test_receipt_moves_the_cursor_of_a_follower_to_which_nothing_is_visible(
        self, world: World
    ) -> None:
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

    def test_follower_that_pushes_in_every_round_keeps_up(self, world: World) -> None:
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

    def test_commits_only_assumed_to_be_read_are_sent_again_once_pushes_stop(
        self, world: World
    ) -> None:
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

    def test_two_lost_pages_are_not_counted_as_read(self, world: World) -> None:
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

    def test_lost_receipt_of_a_first_session_leaves_no_deleted_row(self, world: World) -> None:
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
    def test_void_cursor_is_continued_with_current_rows(self, world: World) -> None:
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
    def test_rows_of_a_trimmed_log_are_read_page_by_page(self, world: World) -> None:
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

    def test_late_update_of_a_deleted_row_is_answered_by_its_removal(self, world: World) -> None:
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

    def test_update_made_before_the_delete_was_pulled_leaves_no_row(self, world: World) -> None:
        a = world.client("a")
        world.write(insert("r1", at=at_ms(0), client="w", title="one"))
        a.sync()
        world.write(delete("r1", at=at_ms(1), client="w"))
        a.update(TABLE, "r1", title="late")
        a.push()
        for _ in range(3):
            a.sync()

        assert rows_of(a) == {}

    def test_update_of_a_deleted_row_is_sent_to_followers_as_its_delete(self, world: World) -> None:
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

    def test_insert_revives_a_row_with_the_columns_newer_than_the_delete(
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
    def test_new_commits_are_sent_as_they_were_pushed(self, world: World) -> None:
        world.client("a")
        made = [
            insert("r1", at=at_ms(0), client="w", title="one"),
            update("r1", at=at_ms(1), client="w", title="two"),
            insert("r2", at=at_ms(2), client="w"),
            delete("r2", at=at_ms(3), client="w"),
        ]
        world.write(*made)

        assert deltas_of(world.pull("a", 0)) == made

    def test_follower_without_rows_may_request_the_first_page_again(self, world: World) -> None:
        world.client("a")
        world.write(insert("r1", at=at_ms(0), client="w"), insert("r2", at=at_ms(1), client="w"))

        assert written(world.pull("a", 0)) == written(world.pull("a", 0)) == [
            ("INSERT", "r1"), ("INSERT", "r2")
        ]  # fmt: skip

    def test_pull_at_a_pages_cursor_is_sent_deltas_as_they_were_pushed(self, world: World) -> None:
        a = world.client("a")
        a.insert(TABLE, "r1", title="one")
        a.push()
        first = world.pull("a", 0).cursor
        a.insert(TABLE, "r2", title="two")
        a.push()

        assert written(world.pull("a", first)) == [("INSERT", "r2")]

    def test_page_that_may_have_been_read_is_repeated_as_whole_rows(self, world: World) -> None:
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
    def test_repeated_row_larger_than_a_delta_is_sent_as_an_insert_and_updates(
        self, world: World
    ) -> None:
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
    def test_follower_that_applies_deltas_in_order_ends_with_the_merged_row(
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

    def test_row_that_begins_with_an_update_is_visible(self, world: World) -> None:
        a = world.client("a")
        world.write(update("r9", at=at_ms(1), client="w", state="s"))
        a.sync()

        assert rows_of(a) == {"r9": {"state": "s"}}

    @pytest.mark.parametrize("again", [False, True])
    def test_whole_row_of_any_size_is_sent_as_valid_deltas(self, *, again: bool) -> None:
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

    def test_own_edit_and_a_later_one_of_another_client_are_merged(self, world: World) -> None:
        a = world.client("a")
        a.sync()
        a.insert(TABLE, "r1", title="mine")
        a.push()
        world.write(update("r1", at=at_ms(1), client="w", state="theirs"))
        a.sync()

        assert rows_of(a) == {"r1": {"title": "mine", "state": "theirs"}}

    def test_restart_with_stored_rows_loses_nothing_and_causes_no_failure(
        self, world: World
    ) -> None:
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
    def test_refused_delta_is_reported_and_later_removed_from_the_client(
        self, world: World
    ) -> None:
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
    def test_delta_with_another_spelling_of_a_table_is_answered_with_the_rows_of_the_first(
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

    def test_accepted_edit_that_hides_its_row_removes_it_from_the_client(
        self, world: World
    ) -> None:
        a = world.client("a", "x")
        world.save_rules(RULES)
        a.insert(TABLE, "r1", owner="x")
        a.sync()
        a.update(TABLE, "r1", owner="y")
        a.push()
        assert not a.queue
        a.sync()

        assert rows_of(a) == {}

    def test_follower_with_a_fast_clock_loses_no_edits(self, world: World) -> None:
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

    def test_edit_with_a_stamp_far_ahead_is_reported_and_removed(self, world: World) -> None:
        a = world.client("a", ahead_ms=3_600_000)
        a.sync()
        a.insert(TABLE, "r1", title="mine")
        for _ in range(140):
            a.sync()
            world.time.now_ms += WAIT_MS_MAX

        assert [delta.row_id for delta in a.given_up] == ["r1"]
        assert rows_of(a) == {}

    def test_losing_edit_is_corrected_on_the_client(self, world: World) -> None:
        a = world.client("a", ahead_ms=-60_000)
        world.write(insert("r1", at=at_ms(0), client="w", title="theirs"))
        a.sync()
        a.update(TABLE, "r1", title="mine")
        a.push()
        assert not a.queue
        a.sync()

        assert rows_of(a) == {"r1": {"title": "theirs"}}

    def test_more_rows_to_resend_than_can_be_remembered_are_all_sent_again(
        self, world: World
    ) -> None:
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

    def test_rows_to_resend_that_exceed_a_page_are_sent_over_several_pages(
        self, world: World
    ) -> None:
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
def test_changed_claims_add_and_remove_rows(world: World) -> None:
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
    def test_rules_that_hide_an_unknown_table_unblock_a_failing_follower(
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

    def test_table_without_a_bucket_is_not_sent_to_a_follower_that_never_had_it(
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

    def test_rows_of_a_hidden_table_are_removed_after_being_pulled(self, world: World) -> None:
        a = world.client("a", "x")
        world.write(insert("r1", at=at_ms(0), client="w", owner="x"))
        world.write(insert("n1", at=at_ms(1), client="w", table="notes", owner="x"), trusted=True)
        a.sync()
        assert ("notes", "n1") in a.rows
        world.save_rules(RULES)
        for _ in range(4):
            a.sync()

        assert set(a.rows) == {(TABLE, "r1")}

    def test_rows_of_a_hidden_table_are_removed_after_being_pushed(self, world: World) -> None:
        a = world.client("a", "x")
        a.insert("notes", "n1", owner="x")
        a.sync()
        a.sync()
        world.save_rules(RULES)
        for _ in range(4):
            a.sync()

        assert a.rows == {}

    def test_rows_of_a_hidden_table_are_removed_after_a_checkpoint(self, world: World) -> None:
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

    def test_stored_state_of_a_follower_stays_small(self, world: World) -> None:
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
def test_pull_with_a_field_of_new_clients_is_not_remembered_as_a_followers(
    world: World, marks: dict[str, object]
) -> None:
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
def test_push_with_a_field_of_new_clients_is_answered_with_its_commit_stamp(
    world: World, marks: dict[str, object]
) -> None:
    made = insert("r1", at=at_ms(0), client="a")
    push = Push(**{"client_id": "a", "deltas": ((0, made),), "own_cursor": False} | marks)  # type: ignore[arg-type]

    assert world.pushes.push(GATEWAY, push).server_hlc > CURSOR_PUSHED_BEFORE_PULL


@pytest.mark.law("F5")
def test_log_without_visible_entries_is_not_read_again(world: World) -> None:
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
