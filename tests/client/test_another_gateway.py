"""A file belongs to the gateway that answered first, until the app gives it to another one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from lakesync.client import Client
from lakesync.result import Err
from lakesync.testing.memory_gateway import MemoryGateway

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from lakesync.result import Result


@pytest.fixture(name="old")
def fixture_old(tmp_path: Path) -> Iterator[MemoryGateway]:
    with MemoryGateway(tmp_path) as gateway:
        yield gateway


@pytest.fixture(name="new")
def fixture_new(tmp_path: Path) -> Iterator[MemoryGateway]:
    with MemoryGateway(tmp_path) as gateway:
        other = gateway.client("other")
        other.insert("todos", "new1", {"title": "of the new gateway"}).unwrap()
        other.sync().unwrap()
        yield gateway


def opened(tmp_path: Path, gateway: MemoryGateway, name: str = "phone") -> Client:
    """Open one file with a gateway."""
    return Client(tmp_path / f"{name}.db", client_id=name, transport=gateway.transport(sub=name))


def titles(client: Client) -> dict[str, str]:
    """Return the todos of a client."""
    rows = client.query("SELECT _row_id, title FROM todos").unwrap()
    return {row["_row_id"]: row["title"] for row in rows}


def refused(result: Result[Any, Any]) -> str:
    """Return the code of a refusal."""
    assert isinstance(result, Err)
    return str(result.error.code)


def at_the_old(tmp_path: Path, old: MemoryGateway, *, pulls: bool = True) -> None:
    """Leave a file that synced with the old gateway, and has an edit that was not sent."""
    with opened(tmp_path, old) as client:
        client.insert("todos", "old1", {"title": "sent"}).unwrap()
        if pulls:
            client.sync().unwrap()
        else:
            client.push().unwrap()
        client.insert("todos", "old2", {"title": "unsent"}).unwrap()


@pytest.mark.law("K36")
@pytest.mark.parametrize("pulls", [True, False])
@pytest.mark.parametrize("is_empty", [False, True], ids=["used", "new and empty"])
def test_a_client_file_neither_pushes_to_nor_pulls_from_another_gateway(
    tmp_path: Path, old: MemoryGateway, new: MemoryGateway, *, pulls: bool, is_empty: bool
) -> None:
    at_the_old(tmp_path, old, pulls=pulls)
    with MemoryGateway(tmp_path) as empty:
        there = empty if is_empty else new
        before = there.rows("todos")
        with opened(tmp_path, there) as client:
            rows = titles(client)
            for act in (client.sync, client.push, client.pull):
                assert refused(act()) == "ANOTHER_GATEWAY"
            assert (titles(client), there.rows("todos")) == (rows, before)
            assert client.quarantined().unwrap() == []
            assert len(client.pending().unwrap()) == 1

    with opened(tmp_path, old) as client:
        client.sync().unwrap()
        assert client.pending().unwrap() == []
    assert set(old.rows("todos")) == {"old1", "old2"}


@pytest.mark.law("K36", "B19")
def test_a_recreated_gateway_is_detected_although_its_head_is_past_the_cursor(
    tmp_path: Path, old: MemoryGateway
) -> None:
    at_the_old(tmp_path, old)
    with MemoryGateway(tmp_path) as anew:
        other = anew.client("other")
        for number in range(3):
            other.insert("todos", f"r{number}", {"title": "later"}).unwrap()
            other.sync().unwrap()
        with opened(tmp_path, anew) as client:
            assert refused(client.pull()) == "ANOTHER_GATEWAY"
            assert titles(client) == {"old1": "sent", "old2": "unsent"}


@pytest.mark.law("K36")
def test_a_file_that_pulled_before_the_first_commit_is_bound_to_the_first_epoch_received(
    tmp_path: Path, old: MemoryGateway, new: MemoryGateway
) -> None:
    with opened(tmp_path, old) as client:
        client.pull().unwrap()
        client.insert("todos", "old1", {"title": "sent"}).unwrap()
        client.push().unwrap()
        client.update("todos", "old1", {"title": "unsent"}).unwrap()
    with opened(tmp_path, new) as client:
        assert refused(client.push()) == "ANOTHER_GATEWAY"
        assert refused(client.pull()) == "ANOTHER_GATEWAY"
    with opened(tmp_path, old) as client:
        assert not client.sync().unwrap().pulled.rebuilt


@pytest.mark.law("K36")
def test_an_action_queued_for_one_gateway_is_not_run_by_another_unless_retried(
    tmp_path: Path, old: MemoryGateway, new: MemoryGateway
) -> None:
    run: list[object] = []

    def mail(params: object) -> None:
        run.append(params)

    for gateway in (old, new):
        gateway.on_action("mail", "send", mail)
    with opened(tmp_path, old) as client:
        client.insert("todos", "old1", {"title": "sent"}).unwrap()
        client.sync().unwrap()
        client.actions.run("mail", "send", {}).unwrap()
    with opened(tmp_path, new) as client:
        assert refused(client.sync()) == "ANOTHER_GATEWAY"
        assert refused(client.actions.send()) == "ANOTHER_GATEWAY"
        [entry] = client.actions.pending().unwrap()
        assert (entry.status, entry.attempts, run) == ("waiting", 0, [])
        client.rebind("edits").unwrap()
        client.sync().unwrap()
        [dead] = client.actions.dead_letters().unwrap()
        assert (dead.code, run) == ("ANOTHER_GATEWAY", [])
        client.actions.retry(dead.action_id).unwrap()
        client.sync().unwrap()
        assert len(run) == 1


@pytest.mark.law("K36")
def test_a_rebound_file_uploads_its_waiting_and_used_attachments_to_the_new_gateway(
    tmp_path: Path, old: MemoryGateway, new: MemoryGateway
) -> None:
    with opened(tmp_path, old) as client:
        used, unused = (client.attachments.add(each).unwrap() for each in (b"used", b"unused"))
        client.attachments.upload().unwrap()
        client.insert("todos", "old1", {"title": "sent"}).unwrap()
        client.sync().unwrap()
        waiting = client.attachments.add(b"waiting").unwrap()
        client.insert("todos", "old2", {"title": "unsent", "photo": str(used)}).unwrap()
    with opened(tmp_path, new) as client:
        assert refused(client.attachments.upload()) == "ANOTHER_GATEWAY"
        assert client.attachments.refused().unwrap() == []
        client.rebind("edits").unwrap()
        client.sync().unwrap()
        assert client.attachments.upload().unwrap().stored == 2
    there = [new.attachments().service.upload("test", str(each)).stored for each in (used, waiting)]
    assert there == [True, True]
    assert not new.attachments().service.upload("test", str(unused)).stored


@pytest.mark.law("K36")
@pytest.mark.parametrize("keep", ["edits", "nothing"])
def test_a_rebound_file_has_the_new_gateways_rows_and_the_edits_that_were_kept(
    tmp_path: Path, old: MemoryGateway, new: MemoryGateway, keep: Any
) -> None:
    with opened(tmp_path, old) as client:
        for row in ("old1", "old2", "old3"):
            client.insert("todos", row, {"title": "sent", "n": 1}).unwrap()
        client.sync().unwrap()
        client.update("todos", "old2", {"title": "unsent"}).unwrap()
        client.insert("todos", "mine", {"title": "unsent"}).unwrap()
        client.delete("todos", "old3").unwrap()
    with opened(tmp_path, new) as client:
        assert client.rebind(keep).unwrap() == 3
        client.sync().unwrap()
        edits = {"mine": "unsent", "old2": "unsent"} if keep == "edits" else {}
        assert titles(client) == {"new1": "of the new gateway"} | edits
        assert client.pending().unwrap() == []
        assert set(new.rows("todos")) == {"new1", *edits}
        assert not client.sync().unwrap().pulled.rebuilt
    with opened(tmp_path, old) as client:
        assert refused(client.sync()) == "ANOTHER_GATEWAY"


@pytest.mark.law("K36")
def test_a_rebound_file_keeps_refused_edits_in_quarantine(
    tmp_path: Path, old: MemoryGateway, new: MemoryGateway
) -> None:
    columns = [{"name": "title", "type": "string"}, {"name": "n", "type": "integer"}]
    old.put_schema({"table": "todos", "columns": columns})
    with opened(tmp_path, old) as client:
        client.insert("todos", "bad", {"title": "x", "n": "no number"}).unwrap()
        client.sync().unwrap()
        assert len(client.quarantined().unwrap()) == 1
    with opened(tmp_path, new) as client:
        assert client.rebind("edits").unwrap() == 1
        client.sync().unwrap()
        [entry] = client.quarantined().unwrap()
        assert titles(client)["bad"] == "x"
        client.retry(entry.delta.delta_id).unwrap()
        client.sync().unwrap()
        assert "bad" in new.rows("todos")


@pytest.mark.law("K36")
def test_a_rebound_file_pushes_its_unanswered_edit_to_the_new_gateway(
    tmp_path: Path, old: MemoryGateway, new: MemoryGateway
) -> None:
    at_the_old(tmp_path, old)
    with opened(tmp_path, old) as client:
        old.online = False
        assert refused(client.push()) == "UNREACHABLE"
    with opened(tmp_path, new) as client:
        assert client.rebind("edits").unwrap() == 1
        client.push().unwrap()
        assert set(new.rows("todos")) == {"new1", "old2"}
        client.pull().unwrap()
        assert set(titles(client)) == {"new1", "old2"}


def test_rebinding_with_an_unknown_keep_value_is_refused(
    tmp_path: Path, old: MemoryGateway
) -> None:
    at_the_old(tmp_path, old)
    with opened(tmp_path, old) as client:
        wrong: Any = "all"
        assert refused(client.rebind(wrong)) == "VALIDATION_ERROR"
        client.sync().unwrap()
