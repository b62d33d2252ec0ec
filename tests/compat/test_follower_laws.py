"""Followers, law by law, in small."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lakesync.compat.followers import BEGUN, TOLD
from lakesync.core.delta import checked_delta
from lakesync.core.messages import Pull, Push
from lakesync.result import Err, Ok
from tests.compat.world import GATEWAY, RULES, TABLE, World, deltas_of
from tests.support.builders import at_ms, delete, insert, update

if TYPE_CHECKING:
    from lakesync.core.delta import Delta
    from lakesync.core.messages import PullPage
    from tests.compat.older import OlderClient


@pytest.fixture
def world() -> World:
    return World()


def told(page: PullPage) -> list[tuple[str, str]]:
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

        assert a.cursor == BEGUN
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

        assert a.cursor > BEGUN
        a.sync()
        assert rows_of(a) == {"r1": {"owner": "x"}}

    def test_who_pushes_in_every_round_gets_on(self, world: World) -> None:
        a = world.client("a")
        for number in range(40):
            world.write(insert(f"w{number}", at=at_ms(number), client="w", title="x"))
        cursors = []
        for number in range(6):
            a.insert(TABLE, f"a{number}", title="x")
            a.sync()
            cursors.append(a.cursor)

        assert cursors == sorted(cursors)
        assert len(set(cursors)) > len(cursors) // TOLD
        assert len(rows_of(a)) == 46

    def test_a_void_cursor_lets_it_begin_again(self, world: World) -> None:
        a = world.client("a")
        world.write(insert("r0", at=at_ms(0), client="w"))
        a.sync()
        world.write(insert("r1", at=at_ms(1), client="w"))
        top = world.pull("a", a.cursor).cursor
        world.buffer.raise_horizon(GATEWAY, "main", top)
        asked = Pull("a", a.cursor, claims=world.claims["a"], own_cursor=False)
        match world.pulls.pull(GATEWAY, asked):
            case Err(error):
                assert error.code == "CURSOR_EXPIRED"
            case Ok(_):
                pytest.fail("the cursor is below the horizon")
        a.insert(TABLE, "r2")
        a.push()

        assert a.cursor == 0


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

        assert told(world.pull("a", 0)) == told(world.pull("a", 0)) == [
            ("INSERT", "r1"), ("INSERT", "r2")
        ]  # fmt: skip

    def test_who_comes_with_a_page_s_cursor_is_sent_what_was_pushed(self, world: World) -> None:
        a = world.client("a")
        a.insert(TABLE, "r1", title="one")
        a.push()
        first = world.pull("a", 0).cursor
        a.insert(TABLE, "r2", title="two")
        a.push()

        assert told(world.pull("a", first)) == [("INSERT", "r2")]

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

    def test_its_own_edits_come_back_merged(self, world: World) -> None:
        a = world.client("a")
        a.sync()
        a.insert(TABLE, "r1", title="mine")
        a.push()
        world.write(update("r1", at=at_ms(1), client="w", state="theirs"))
        a.sync()

        assert rows_of(a) == {"r1": {"title": "mine", "state": "theirs"}}

    def test_what_is_refused_is_taken_back(self, world: World) -> None:
        a = world.client("a", "x")
        world.save_rules(RULES)
        a.sync()
        a.insert(TABLE, "r1", owner="x", nothing="of the schema")
        a.insert(TABLE, "r2", owner="y")
        a.push()
        a.sync()

        assert rows_of(a) == {}

    def test_a_restart_with_rows_on_disk_is_harmless(self, world: World) -> None:
        a = world.client("a")
        world.write(insert("r1", at=at_ms(0), client="w", title="x"))
        a.sync()
        a.sync()
        a.restart()
        a.sync()

        assert a.failures == 0
        assert rows_of(a) == {"r1": {"title": "x"}}


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


@pytest.mark.law("F4")
@pytest.mark.parametrize(
    "marks",
    [
        {"own_cursor": True},
        {"removes": True},
        {"epoch": "e"},
        {"scope": "*"},
        {"snapshot": "begin"},
    ],
)
def test_one_mark_of_ours_and_nothing_is_remembered(world: World, marks: dict[str, object]) -> None:
    world.client("a")
    world.write(insert("r1", at=at_ms(0), client="w"))
    asked = Pull("a", 0, own_cursor=False)
    world.pulls.pull(GATEWAY, Pull(**{"client_id": "a", "own_cursor": False} | marks))  # type: ignore[arg-type]
    assert world.buffer.follower(GATEWAY, "a") is None

    world.pulls.pull(GATEWAY, asked).unwrap()
    assert world.buffer.follower(GATEWAY, "a") is not None


@pytest.mark.law("F4")
@pytest.mark.parametrize("marks", [{"own_cursor": True}, {"atomic": True}, {"epoch": ""}])
def test_a_push_with_a_mark_of_ours_is_answered_by_its_commit(
    world: World, marks: dict[str, object]
) -> None:
    made = insert("r1", at=at_ms(0), client="a")
    push = Push(**{"client_id": "a", "deltas": ((0, made),), "own_cursor": False} | marks)  # type: ignore[arg-type]

    assert world.pushes.push(GATEWAY, push).unwrap().server_hlc > BEGUN


@pytest.mark.law("F5")
def test_what_held_nothing_is_not_read_again(world: World) -> None:
    world.save_rules(RULES)
    a = world.client("a", "x")
    for number in range(50):
        world.write(insert(f"r{number}", at=at_ms(number), client="w", owner="y"))
    a.sync()
    a.sync()
    read: list[int] = []
    entries = world.buffer.entries

    def counted(gateway: str, shard: str, after: int, until: int, count_max: int) -> object:
        found = entries(gateway, shard, after, until, count_max)
        read.append(len(found.entries))
        return found

    world.buffer.entries = counted  # type: ignore[method-assign, assignment]
    a.sync()
    world.write(insert("mine", at=at_ms(99), client="w", owner="x"))
    a.sync()

    assert a.cursor > BEGUN
    assert set(rows_of(a)) == {"mine"}
    assert sum(read) <= 3
