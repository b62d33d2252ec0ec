"""A client under sync rules: rows come and go, rules and claims change, and no edit is lost."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from lakesync.client import Client
from lakesync.core.clock import DRIFT_MS_MAX
from lakesync.core.delta import Op, make_delta, parse
from lakesync.core.messages import DeltaOutcome, OutcomeKind, Push, PushReceipt, Resync
from lakesync.errors import RowDeleted
from lakesync.result import Err
from lakesync.wire.records import decode_row_state
from tests.client.support.gateways import GATEWAY, RealGateway
from tests.client.support.pages import ScriptedPages, page
from tests.client.support.world import check_sound
from tests.support.builders import WALL_MS, at_ms

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from lakesync.core.messages import Pull, PullPage

MINE = {"column": "owner", "op": "eq", "value": "jwt:owner"}


class Claimed:
    """The transport of a client whose token has these claims."""

    def __init__(self, gateway: RealGateway, **claims: Any) -> None:
        self._gateway = gateway
        self.claims = claims

    def push(self, push: Push) -> PushReceipt:
        return self._gateway.push(GATEWAY, replace(push, claims=self.claims))

    def pull(self, pull: Pull) -> PullPage:
        return self._gateway.pull(GATEWAY, replace(pull, claims=self.claims))


class World:
    """One gateway with rules, and clients with claims."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._time_ms = WALL_MS
        self.gateway = RealGateway(self.clock)
        columns = [{"name": name, "type": "string"} for name in ("owner", "title")]
        body = {"table": "todos", "columns": columns}
        self.gateway._admin.register_schema(GATEWAY, body)
        self.clients: dict[str, tuple[Client, Claimed]] = {}

    def clock(self) -> int:
        self._time_ms += 10
        return self._time_ms

    def rules(self, *buckets: dict[str, Any]) -> None:
        named = [{"name": str(n), "tables": ["todos"]} | b for n, b in enumerate(buckets)]
        self.gateway._admin.save_rules(GATEWAY, {"buckets": named})

    def client(self, name: str, owner: str | None = None) -> Client:
        transport = Claimed(self.gateway, sub=name, owner=owner or name)
        client = Client(
            self._folder / f"{name}.db", client_id=name, transport=transport,
            wall_clock=self.clock,
        )  # fmt: skip
        self.clients[name] = (client, transport)
        return client

    def titles(self, name: str) -> dict[str, Any]:
        client, _ = self.clients[name]
        rows = client.query('SELECT _row_id, title FROM "todos" ORDER BY _row_id').unwrap()
        return {row["_row_id"]: row["title"] for row in rows}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    for client, _ in world.clients.values():
        client.close()


def sync(*clients: Client) -> None:
    for client in clients:
        client.push().unwrap()
        client.pull().unwrap()


@pytest.mark.law("K15")
class TestSight:
    def test_a_row_that_rules_hide_is_removed_and_returns_whole_when_shown_again(
        self, world: World
    ) -> None:
        world.rules({"filters": [MINE]})
        ann, bob = world.client("ann"), world.client("bob")
        ann.insert("todos", "t1", {"owner": "ann", "title": "of ann"}).unwrap()
        sync(ann, bob)
        assert world.titles("ann") == {"t1": "of ann"}
        assert not bob.get("todos", "t1").unwrap()

        ann.update("todos", "t1", {"owner": "bob"}).unwrap()
        sync(ann, bob)
        ann.pull().unwrap()
        assert bob.get("todos", "t1").unwrap() == {"owner": "bob", "title": "of ann"}
        assert ann.get("todos", "t1").unwrap() is None

        bob.update("todos", "t1", {"owner": "ann"}).unwrap()
        sync(bob, ann)
        assert ann.get("todos", "t1").unwrap() == {"owner": "ann", "title": "of ann"}
        assert bob.get("todos", "t1").unwrap() is None

    def test_a_pending_edit_survives_when_rules_hide_its_row(self, world: World) -> None:
        world.rules({"filters": [MINE], "write": []})
        ann, bob = world.client("ann"), world.client("bob", owner="ann")
        ann.insert("todos", "t1", {"owner": "ann", "title": "a"}).unwrap()
        sync(ann, bob)
        bob.update("todos", "t1", {"owner": "eve"}).unwrap()
        bob.push().unwrap()
        ann.update("todos", "t1", {"title": "still mine"}).unwrap()
        ann.pull().unwrap()

        assert ann.get("todos", "t1").unwrap() == {"title": "still mine"}
        ann.push().unwrap()
        rows = world.gateway.buffer.rows(GATEWAY, [("todos", "t1")])
        columns = decode_row_state(rows["todos", "t1"].state).columns
        assert parse(columns["title"][2]) == "still mine"

    def test_an_edit_of_a_row_hidden_by_rules_is_quarantined_as_forbidden(
        self, world: World
    ) -> None:
        world.rules({"filters": [MINE]})
        ann = world.client("ann")
        ann.insert("todos", "t1", {"owner": "ann", "title": "a"}).unwrap()
        ann.update("todos", "t1", {"owner": "eve"}).unwrap()
        sync(ann)
        ann.update("todos", "t1", {"title": "too late"}).unwrap()
        ann.push().unwrap()

        [set_aside] = ann.quarantined().unwrap()
        assert set_aside.code == "FORBIDDEN"
        rows = world.gateway.buffer.rows(GATEWAY, [("todos", "t1")])
        columns = decode_row_state(rows["todos", "t1"].state).columns
        assert parse(columns["title"][2]) == "a"

    def test_changed_rules_remove_and_add_rows_and_keep_the_outbox(self, world: World) -> None:
        ann, bob = world.client("ann"), world.client("bob")
        ann.insert("todos", "t1", {"owner": "ann", "title": "a"}).unwrap()
        bob.insert("todos", "t2", {"owner": "bob", "title": "b"}).unwrap()
        sync(ann, bob, ann)
        assert world.titles("ann") == world.titles("bob") == {"t1": "a", "t2": "b"}

        ann.update("todos", "t1", {"title": "offline"}).unwrap()
        world.rules({"filters": [MINE]})
        ann.pull().unwrap()
        bob.pull().unwrap()
        assert (world.titles("ann"), world.titles("bob")) == ({"t1": "offline"}, {"t2": "b"})

        world.rules()
        sync(ann, bob)
        assert world.titles("bob") == {"t1": "offline", "t2": "b"}

    def test_a_changed_claim_changes_the_rows_of_a_client(self, world: World) -> None:
        world.rules({"filters": [MINE]})
        ann, bob = world.client("ann"), world.client("bob")
        ann.insert("todos", "t1", {"owner": "ann", "title": "a"}).unwrap()
        bob.insert("todos", "t2", {"owner": "bob", "title": "b"}).unwrap()
        sync(ann, bob, ann)
        assert world.titles("ann") == {"t1": "a"}

        world.clients["ann"][1].claims["owner"] = "bob"
        assert ann.pull().unwrap().rebuilt
        assert world.titles("ann") == {"t2": "b"}
        assert not ann.pull().unwrap().rebuilt

    def test_a_clients_own_row_hidden_by_rules_is_removed_by_the_page_that_passes_its_commit(
        self, world: World
    ) -> None:
        world.rules({"filters": [MINE]})
        ann, bob = world.client("ann"), world.client("bob")
        sync(ann)
        ann.declare("todos", {"owner": "string", "title": "string"}).unwrap()
        seen: list[Any] = []
        with ann.watch("SELECT title FROM todos") as titles:
            seen.append(next(titles))
            ann.insert("todos", "t1", {"owner": "bob", "title": "for bob"}).unwrap()
            seen.append(next(titles))
            sync(ann)
            seen.append(next(titles))
        sync(bob)

        assert seen == [[], [{"title": "for bob"}], []]
        assert ann.get("todos", "t1").unwrap() is None
        assert world.titles("bob") == {"t1": "for bob"}
        assert ann.query("SELECT * FROM _lakesync_rows").unwrap() == []
        assert isinstance(ann.query("SELECT * FROM _lakesync_journal"), Err)
        check_sound(ann)

    def test_a_clients_own_hidden_row_returns_when_rules_show_it(self, world: World) -> None:
        world.rules({"filters": [MINE]})
        ann, bob = world.client("ann"), world.client("bob")
        sync(ann)
        ann.insert("todos", "t1", {"owner": "bob", "title": "for bob"}).unwrap()
        sync(ann, bob)
        assert world.titles("ann") == {}
        bob.update("todos", "t1", {"owner": "ann"}).unwrap()
        sync(bob, ann)

        assert world.titles("ann") == {"t1": "for bob"}
        check_sound(ann)

    def test_a_pending_edit_stays_when_its_accepted_row_is_hidden_by_rules(
        self, world: World
    ) -> None:
        world.rules({"filters": [MINE], "write": []})
        ann = world.client("ann")
        sync(ann)
        ann.insert("todos", "t1", {"owner": "bob", "title": "for bob"}).unwrap()
        ann.push().unwrap()
        ann.update("todos", "t1", {"title": "still waits"}).unwrap()
        ann.pull().unwrap()

        assert ann.get("todos", "t1").unwrap() == {"title": "still waits"}
        check_sound(ann)
        sync(ann)
        assert ann.get("todos", "t1").unwrap() is None

    def test_a_clients_own_row_hidden_by_rules_is_removed_although_its_receipt_was_lost(
        self, world: World
    ) -> None:
        world.rules({"filters": [MINE]})
        ann = world.client("ann")
        sync(ann)
        ann.insert("todos", "t1", {"owner": "bob", "title": "for bob"}).unwrap()
        [entry] = ann.pending().unwrap()
        world.clients["ann"][1].push(Push("ann", ((0, entry.delta),)))
        sync(ann, ann)

        assert ann.get("todos", "t1").unwrap() is None
        check_sound(ann)

    def test_a_write_refused_by_rules_is_quarantined_as_forbidden(self, world: World) -> None:
        world.rules({"filters": [], "write": [MINE]})
        ann = world.client("ann")
        ann.insert("todos", "t1", {"owner": "ann", "title": "mine"}).unwrap()
        ann.insert("todos", "t2", {"owner": "bob", "title": "not mine"}).unwrap()
        summary = ann.push().unwrap()

        assert (summary.accepted, summary.quarantined) == (1, 1)
        (entry,) = ann.quarantined().unwrap()
        assert entry.code == "FORBIDDEN"


@pytest.mark.law("K15")
def test_after_a_re_sync_a_row_that_the_log_only_deletes_is_removed(
    tmp_path: Path,
) -> None:
    """The log tells that it was deleted; that it was made again, out of sight, it does not."""

    gone = make_delta(Op.DELETE, "todos", "t1", client_id="b", hlc=at_ms(1))
    made = make_delta(Op.INSERT, "todos", "t1", {"title": "x"}, client_id="b", hlc=at_ms(2))
    transport = ScriptedPages(
        page(gone, made, cursor=3, scope="*"),
        page(
            cursor=3,
            scope="new",
            snapshot=f"{at_ms(3):x}|||",
            resync=Resync(("todos",)),
            has_more=True,
        ),
        page(gone, cursor=4, scope="new"),
    )
    with _opened(tmp_path, transport) as client:
        client.pull().unwrap()
        assert client.get("todos", "t1").unwrap() == {"title": "x"}

        client.pull().unwrap()

        assert client.get("todos", "t1").unwrap() is None


@pytest.mark.law("K15")
def test_a_clients_own_write_hidden_by_new_rules_is_removed_once_the_log_passes_its_commit(
    tmp_path: Path,
) -> None:
    """Rows had shown it; then rules filter its table, and the log brings an older part of its row.

    What the log has yet to pass of it stays until then, and no longer.
    """
    gone = make_delta(Op.DELETE, "todos", "t1", client_id="b", hlc=at_ms(1))
    mine = make_delta(Op.INSERT, "todos", "t1", {"title": "x"}, client_id="a", hlc=at_ms(60_000))
    again = {"snapshot": f"{at_ms(3):x}|||", "resync": Resync(("todos",)), "has_more": True}
    transport = ScriptedPages(
        page(mine, cursor=3, scope="*"),
        page(cursor=3, scope="new", **again),
        page(gone, cursor=4, scope="new"),
        page(cursor=60_001, scope="new"),
    )
    with _opened(tmp_path, transport) as client:
        client.pull().unwrap()
        client.pull().unwrap()
        assert client.get("todos", "t1").unwrap() == {"title": "x"}

        client.pull().unwrap()

        assert client.get("todos", "t1").unwrap() is None
        check_sound(client)


@pytest.mark.law("K15")
@pytest.mark.parametrize(
    ("cursor", "more"), [(4, {"title": "mine"}), (6, {})], ids=["still to come", "judged"]
)
def test_a_row_shown_again_keeps_an_own_hidden_write_only_while_the_cursor_is_before_it(
    tmp_path: Path, cursor: int, more: dict[str, Any]
) -> None:
    """It was deleted out of sight, the deletion was forgotten, and another made it anew."""
    anew = make_delta(Op.UPDATE, "todos", "t1", {"owner": "a"}, client_id="b", hlc=at_ms(4))
    transport = ScriptedPages(
        page(cursor=2, scope="ruled"),
        page(cursor=3, scope="ruled"),
        page(anew, cursor=cursor, scope="ruled"),
        page(cursor=6, scope="ruled"),
    )
    with _opened(tmp_path, transport) as client:
        client.pull().unwrap()
        client.insert("todos", "t1", {"title": "mine"}).unwrap()
        client.push().unwrap()
        client.pull().unwrap()
        assert client.get("todos", "t1").unwrap() == {"title": "mine"}
        client.update("todos", "t1", {"n": 1}).unwrap()

        client.pull().unwrap()

        assert client.get("todos", "t1").unwrap() == {"owner": "a", "n": 1, **more}
        check_sound(client)


@pytest.mark.law("K15")
def test_a_row_shown_again_keeps_only_the_own_hidden_writes_that_the_cursor_has_not_passed(
    tmp_path: Path,
) -> None:
    """The one was deleted and forgotten with the row; the other came after its new beginning."""
    anew = make_delta(Op.UPDATE, "todos", "t1", {"owner": "a"}, client_id="b", hlc=at_ms(4))
    transport = ScriptedPages(
        page(cursor=2, scope="ruled"),
        page(anew, cursor=6, scope="ruled"),
        page(cursor=8, scope="ruled"),
    )
    with _opened(tmp_path, transport) as client:
        client.pull().unwrap()
        client.insert("todos", "t1", {"title": "mine"}).unwrap()
        client.push().unwrap()
        transport.commit = at_ms(7)
        client.update("todos", "t1", {"n": 1}).unwrap()
        client.push().unwrap()

        client.pull().unwrap()

        assert client.get("todos", "t1").unwrap() == {"owner": "a", "n": 1}
        check_sound(client)


@pytest.mark.law("K15")
def test_a_write_before_the_first_page_is_removed_by_a_page_that_passes_it_without_its_row(
    tmp_path: Path,
) -> None:
    """No page has told yet whether rules decide."""
    anew = make_delta(Op.UPDATE, "todos", "t1", {"owner": "a"}, client_id="b", hlc=at_ms(8))
    transport = ScriptedPages(page(cursor=6, scope="ruled"), page(anew, cursor=9, scope="ruled"))
    with _opened(tmp_path, transport) as client:
        client.insert("todos", "t1", {"title": "mine"}).unwrap()
        client.push().unwrap()
        client.pull().unwrap()
        assert client.get("todos", "t1").unwrap() is None, "its page has passed without the row"

        client.pull().unwrap()

        assert client.get("todos", "t1").unwrap() == {"owner": "a"}
        check_sound(client)


@pytest.mark.law("K15")
def test_a_write_accepted_before_rules_changed_is_removed_if_new_rules_hide_its_row(
    tmp_path: Path,
) -> None:
    """No page has shown it; the log shows what its row was before, and then nothing of it."""
    gone = make_delta(Op.DELETE, "todos", "t1", client_id="b", hlc=at_ms(1 - DRIFT_MS_MAX))
    transport = ScriptedPages(
        page(cursor=2, scope="*"),
        page(
            cursor=2, scope="new", snapshot=f"{at_ms(-9 - DRIFT_MS_MAX):x}|||",
            resync=Resync(("todos",)), has_more=True,
        ),
        page(gone, cursor=4, scope="new", has_more=True),
        page(cursor=6, scope="new"),
    )  # fmt: skip
    with _opened(tmp_path, transport) as client:
        client.pull().unwrap()
        client.insert("todos", "t1", {"title": "mine"}).unwrap()
        client.push().unwrap()

        client.pull().unwrap()

        assert client.get("todos", "t1").unwrap() is None
        check_sound(client)


@pytest.mark.law("K15")
def test_a_write_accepted_after_an_unseen_delete_is_dropped_when_its_row_is_shown_again(
    tmp_path: Path,
) -> None:
    """And when another makes the row anew, it is no more: that deletion was forgotten too."""
    seen = make_delta(Op.UPDATE, "todos", "t1", {"owner": "a"}, client_id="b", hlc=at_ms(1))
    newer = make_delta(Op.UPDATE, "todos", "t2", {"owner": "a"}, client_id="b", hlc=at_ms(2))
    gone = make_delta(Op.DELETE, "todos", "t1", client_id="b", hlc=at_ms(1) + 1)
    anew = make_delta(Op.UPDATE, "todos", "t1", {"owner": "a"}, client_id="b", hlc=at_ms(8))
    transport = ScriptedPages(
        page(seen, newer, cursor=2, scope="ruled"),
        page(gone, cursor=4, scope="ruled"),
        page(anew, cursor=9, scope="ruled"),
    )
    with _opened(tmp_path, transport) as client:
        client.pull().unwrap()
        client.update("todos", "t1", {"n": 1}).unwrap()
        client.push().unwrap()
        client.pull().unwrap()
        assert client.get("todos", "t1").unwrap() == {"n": 1}

        client.pull().unwrap()

        assert client.get("todos", "t1").unwrap() == {"owner": "a"}
        check_sound(client)


@pytest.mark.law("K15")
def test_values_of_a_page_stay_when_the_next_page_changes_another_column(tmp_path: Path) -> None:
    seen = make_delta(Op.UPDATE, "todos", "t1", {"owner": "a"}, client_id="b", hlc=at_ms(1))
    other = make_delta(Op.UPDATE, "todos", "t1", {"title": "x"}, client_id="b", hlc=at_ms(8))
    transport = ScriptedPages(page(seen, cursor=2, scope="ruled"))
    with _opened(tmp_path, transport) as client:
        client.pull().unwrap()
        mine = client.update("todos", "t1", {"n": 1}).unwrap()
        client.push().unwrap()
        transport.bring(page(mine, cursor=6, scope="ruled"), page(other, cursor=9, scope="ruled"))

        client.pull().unwrap()
        client.pull().unwrap()

        assert client.get("todos", "t1").unwrap() == {"owner": "a", "n": 1, "title": "x"}
        check_sound(client)


def _opened(folder: Path, transport: ScriptedPages) -> Client:
    return Client(folder / "a.db", client_id="a", transport=transport, wall_clock=lambda: WALL_MS)


@pytest.mark.law("K13", "K15")
@pytest.mark.parametrize("removed", [False, True], ids=["never shown", "taken away"])
def test_an_own_write_hidden_by_rules_returns_to_the_outbox_after_a_restore(
    tmp_path: Path, *, removed: bool
) -> None:
    """Perhaps nobody else has it."""
    gone = make_delta(Op.REMOVE, "todos", "t1", client_id="_", hlc=at_ms(6))
    transport = ScriptedPages(
        page(cursor=2, scope="ruled", epoch="here"),
        page(*[gone] * removed, cursor=6, scope="ruled", epoch="here"),
        page(cursor=3, scope="ruled", epoch="here.1"),
        page(cursor=3, scope="ruled", epoch="here.1"),
        page(cursor=9, scope="ruled", epoch="here.1"),
    )
    with _opened(tmp_path, transport) as client:
        client.pull().unwrap()
        made = client.insert("todos", "t1", {"title": "mine"}).unwrap()
        client.push().unwrap()
        client.pull().unwrap()
        assert (client.get("todos", "t1").unwrap(), client.pending().unwrap()) == (None, [])

        assert client.pull().unwrap().rebuilt

        assert [entry.delta for entry in client.pending().unwrap()] == [made]
        check_sound(client)
        transport.commit = at_ms(8)
        client.push().unwrap()
        client.pull().unwrap()
        assert (client.get("todos", "t1").unwrap(), client.pending().unwrap()) == (None, [])
        check_sound(client)


@pytest.mark.law("K33")
def test_the_journal_of_own_writes_keeps_no_value_of_an_omitted_column(tmp_path: Path) -> None:
    transport = ScriptedPages(
        page(cursor=2, scope="ruled"),
        page(cursor=6, scope="ruled"),
        page(
            cursor=6, scope="other", snapshot=f"{at_ms(6):x}|||", has_more=True,
            resync=Resync(("todos",), omitted={"todos": ("title",)}),
        ),
        page(cursor=7, scope="other"),
        page(cursor=3, scope="other", epoch="here.1"),
        page(cursor=3, scope="other", epoch="here.1"),
    )  # fmt: skip
    with _opened(tmp_path, transport) as client:
        client.pull().unwrap()
        client.insert("todos", "t1", {"title": "mine", "n": 1}).unwrap()
        client.insert("todos", "t2", {}).unwrap()
        client.update("todos", "t2", {"title": "mine"}).unwrap()
        client.push().unwrap()
        for _ in range(3):
            client.pull().unwrap()

        assert [entry.delta.columns for entry in client.pending().unwrap()] == [(("n", b"1"),), ()]
        check_sound(client)


@pytest.mark.law("K13")
def test_the_journal_of_own_writes_is_dropped_after_the_retention_of_backups(
    tmp_path: Path,
) -> None:
    later = 36 * 86_400_000
    transport = ScriptedPages(
        page(cursor=2, scope="ruled"),
        page(cursor=6, scope="ruled"),
        page(cursor=later, scope="ruled"),
        page(cursor=3, scope="ruled", epoch="here.1"),
        page(cursor=3, scope="ruled", epoch="here.1"),
    )
    with _opened(tmp_path, transport) as client:
        client.pull().unwrap()
        client.insert("todos", "t1", {"title": "mine"}).unwrap()
        client.push().unwrap()
        for _ in range(3):
            client.pull().unwrap()

        assert client.pending().unwrap() == []


@pytest.mark.law("K37")
class TestDeletedMeanwhile:
    @pytest.fixture
    def both(self, world: World) -> tuple[Client, Client]:
        """Two clients of one owner, with a row that the second has deleted."""
        world.rules({"filters": [MINE]})
        ann, bob = world.client("ann"), world.client("bob", owner="ann")
        ann.insert("todos", "t1", {"owner": "ann", "title": "a"}).unwrap()
        sync(ann, bob)
        bob.delete("todos", "t1").unwrap()
        bob.push().unwrap()
        return ann, bob

    @pytest.mark.parametrize("pulls_first", [True, False])
    @pytest.mark.parametrize("together", [True, False])
    def test_an_edit_later_than_a_delete_restores_the_whole_row_for_all_clients_that_may_see_it(
        self, both: tuple[Client, Client], *, pulls_first: bool, together: bool
    ) -> None:
        ann, bob = both
        with ann.transaction() as tx:
            tx.update("todos", "t1", {"title": "later"}).unwrap()
            if together:
                tx.insert("todos", "t2", {"owner": "ann", "title": "other"}).unwrap()
        if pulls_first:
            ann.pull().unwrap()
        ann.sync().unwrap()
        bob.sync().unwrap()

        row = {"owner": "ann", "title": "later"}
        assert ann.get("todos", "t1").unwrap() == bob.get("todos", "t1").unwrap() == row
        assert ann.pending().unwrap() == ann.quarantined().unwrap() == []
        check_sound(ann)

    def test_columns_restored_by_an_edit_lose_to_any_later_write(
        self, both: tuple[Client, Client], world: World
    ) -> None:
        ann, bob = both
        bob.insert("todos", "t1", {"owner": "ann", "title": "of bob"}).unwrap()
        ann.update("todos", "t1", {"owner": "ann"}).unwrap()
        ann.pull().unwrap()
        bob.push().unwrap()
        ann.sync().unwrap()
        bob.sync().unwrap()

        assert world.titles("ann") == world.titles("bob") == {"t1": "of bob"}

    def test_an_update_made_after_pulling_the_delete_is_quarantined_as_row_deleted(
        self, both: tuple[Client, Client]
    ) -> None:
        """Of the row nothing is left that it could be inserted with."""
        ann, _ = both
        ann.pull().unwrap()
        ann.update("todos", "t1", {"title": "later"}).unwrap()
        ann.sync().unwrap()

        [entry] = ann.quarantined().unwrap()
        assert entry.code == "ROW_DELETED"
        ann.discard(entry.delta.delta_id).unwrap()
        assert ann.get("todos", "t1").unwrap() is None
        check_sound(ann)

    def test_a_clients_own_delete_after_its_edit_of_a_deleted_row_stands(
        self, both: tuple[Client, Client]
    ) -> None:
        ann, _ = both
        ann.update("todos", "t1", {"title": "later"}).unwrap()
        ann.delete("todos", "t1").unwrap()
        ann.sync().unwrap()

        assert ann.get("todos", "t1").unwrap() is None
        assert ann.pending().unwrap() == []

    def test_an_older_delete_that_arrives_after_a_later_edit_removes_the_row_from_its_author_too(
        self, world: World
    ) -> None:
        world.rules({"filters": [MINE]})
        ann, bob = world.client("ann"), world.client("bob", owner="ann")
        ann.insert("todos", "t1", {"owner": "ann", "title": "a"}).unwrap()
        sync(ann, bob)
        bob.delete("todos", "t1").unwrap()
        ann.update("todos", "t1", {"title": "later"}).unwrap()
        sync(ann, bob, ann)

        assert ann.get("todos", "t1").unwrap() is None
        assert bob.get("todos", "t1").unwrap() is None
        [conflict] = ann.conflicts().unwrap()
        assert (conflict.column, conflict.own, conflict.other) == ("title", "later", None)
        check_sound(ann)


class Refusing(ScriptedPages):
    """Says of every edit that its row was deleted, at a commit that was read long ago."""

    def push(self, push: Push) -> PushReceipt:
        outcomes = tuple(
            DeltaOutcome(index, delta.delta_id, OutcomeKind.REFUSED, RowDeleted("gone"))
            for index, delta in push.deltas
        )
        return PushReceipt(at_ms(1), 0, outcomes, server_time_ms=WALL_MS)


@pytest.mark.law("K37")
def test_an_update_refused_for_a_delete_behind_the_cursor_is_quarantined_at_once(
    tmp_path: Path,
) -> None:
    """The client has read past it, and shows the row all the same."""
    theirs = make_delta(Op.INSERT, "todos", "t1", {"title": "a"}, client_id="b", hlc=at_ms(1))
    transport = Refusing(page(theirs, cursor=2, scope="ruled"))
    with _opened(tmp_path, transport) as client:
        client.pull().unwrap()
        client.update("todos", "t1", {"title": "mine"}).unwrap()
        client.push().unwrap()

        [entry] = client.quarantined().unwrap()
        assert entry.code == "ROW_DELETED"


@pytest.mark.law("K36")
def test_rebinding_to_another_gateway_drops_the_journal_of_own_writes(tmp_path: Path) -> None:
    transport = ScriptedPages(
        page(cursor=2, scope="ruled", epoch="here"),
        page(cursor=6, scope="ruled", epoch="here"),
        page(cursor=2, scope="ruled", epoch="there"),
        page(cursor=2, scope="ruled", epoch="there.1"),
        page(cursor=2, scope="ruled", epoch="there.1"),
    )
    with _opened(tmp_path, transport) as client:
        client.pull().unwrap()
        client.insert("todos", "t1", {"title": "mine"}).unwrap()
        client.push().unwrap()
        client.pull().unwrap()
        client.rebind(keep="edits").unwrap()
        for _ in range(2):
            client.pull().unwrap()

        assert client.pending().unwrap() == []
