"""One direction of syncing, the waits of a client in the background, and a client in memory."""

from __future__ import annotations

import logging
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest

from lakesync.client import Client, SyncLoop, Waits
from lakesync.client.waits import WAITS
from lakesync.errors import OutOfOrder, Unreachable, ValidationFailed
from lakesync.result import Err
from lakesync.testing.memory_gateway import MemoryGateway
from tests.client.support.world import check_sound
from tests.support.waiting import waited

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[MemoryGateway]:
    """Yield a gateway in memory that has one row, and one handler of actions."""
    with MemoryGateway(tmp_path) as gateway:
        gateway.on_action("mail", "send", lambda _: {"sent": True})
        with gateway.client("other") as other:
            other.insert("todos", "theirs", {"title": "a"}).unwrap()
            other.sync().unwrap()
        yield gateway


@pytest.mark.law("K38")
def test_a_pull_sync_sends_nothing_and_a_push_sync_reads_nothing(
    gateway: MemoryGateway,
) -> None:
    with gateway.client("phone") as client:
        client.insert("todos", "mine", {"title": "b"}).unwrap()
        client.actions.run("mail", "send", after_edits=False).unwrap()

        done = client.sync(mode="pull").unwrap()
        assert (done.pulled.deltas, done.pushed.accepted, done.acted.done) == (1, 0, 0)
        assert "mine" not in gateway.rows("todos")
        assert (client.status.pending, client.status.actions_pending) == (1, 1)

        with gateway.client("other") as other:
            other.update("todos", "theirs", {"title": "c"}).unwrap()
            other.sync().unwrap()
        done = client.sync(mode="push").unwrap()
        assert (done.pulled.pages, done.pushed.accepted, done.acted.done) == (0, 1, 1)
        assert gateway.rows("todos")["mine"] == {"title": "b"}
        assert client.get("todos", "theirs").unwrap() == {"title": "a"}

        client.sync().unwrap()
        assert client.get("todos", "theirs").unwrap() == {"title": "c"}
        check_sound(client)


@pytest.mark.law("K38")
def test_a_pull_only_loop_pushes_no_edits_and_uploads_no_attachments(
    gateway: MemoryGateway,
) -> None:
    with gateway.client("phone") as client:
        client.insert("todos", "mine", {"title": "b"}).unwrap()
        client.attachments.add(b"x").unwrap()
        loop = client.connect(mode="pull")
        assert waited(lambda: client.get("todos", "theirs").unwrap())
        with gateway.client("other") as other:
            other.update("todos", "theirs", {"title": "c"}).unwrap()
            other.sync().unwrap()
        assert waited(lambda: client.get("todos", "theirs").unwrap() == {"title": "c"})
        loop.stop()
        status = client.status
        assert (status.pending, status.attachments_pending) == (1, 1)


@pytest.mark.law("K38")
def test_a_push_only_loop_opens_no_socket_and_pulls_nothing(gateway: MemoryGateway) -> None:
    with gateway.client("phone") as client:
        client.connect(mode="push", every_s=0.01)
        client.insert("todos", "mine", {"title": "b"}).unwrap()
        assert waited(lambda: "mine" in gateway.rows("todos"))
        status = client.status
        assert (status.connected, status.has_synced) == (False, False)
        assert client.get("todos", "theirs").unwrap() is None


@pytest.mark.law("K38")
def test_a_push_sync_whose_edit_needs_a_pull_fails_once_and_keeps_the_edit(
    gateway: MemoryGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    push = Mock(side_effect=OutOfOrder("late"))
    with gateway.client("phone") as client:
        client.insert("todos", "mine", {"title": "b"}).unwrap()
        monkeypatch.setattr(client._syncer._pusher, "push", push)
        result = client.sync(mode="push")
        assert isinstance(result, Err)
        assert result.error.code == "OUT_OF_ORDER"
        assert push.call_count == 1  # as often as that can help
        assert client.status.pending == 1


@pytest.mark.law("K38")
@pytest.mark.parametrize("mode", ["both", "", None, 1, ["push"]])
def test_an_invalid_sync_mode_is_refused(gateway: MemoryGateway, mode: Any) -> None:
    says = "mode is full, push or pull, not "
    with gateway.client("phone") as client:
        loop = client.connect()
        with pytest.raises(ValidationFailed, match=says):
            client.connect(mode=mode)
        assert loop.is_running()
        with pytest.raises(ValidationFailed, match=says):
            SyncLoop(client, mode=mode)
        result = client.sync(mode=mode)
        assert isinstance(result, Err)
        assert (result.error.code, result.error.field) == ("VALIDATION_ERROR", "mode")


def test_sync_loop_waits_have_defaults_and_can_be_configured(gateway: MemoryGateway) -> None:
    assert Waits(heartbeat_s=450, reconnect_s=1, reconnect_s_max=300) == WAITS
    error = Unreachable("away")
    with gateway.client("phone") as client:
        waits = Waits(reconnect_s=5, reconnect_s_max=20)
        loop = SyncLoop(client, waits=waits, chance=lambda: 0.999)
        for failures, most_s in enumerate((6, 11, 20, 20)):
            loop._failures = failures
            assert loop.backoff_s(error) == pytest.approx(most_s, rel=0.01)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"heartbeat_s": 0}, "heartbeat_s must be a number of seconds above 0"),
        ({"heartbeat_s": 600}, "heartbeat_s is at most 540"),
        ({"reconnect_s": math.nan}, "reconnect_s must be a number"),
        ({"reconnect_s_max": "1"}, "reconnect_s_max must be a number"),
        ({"reconnect_s": 400}, "reconnect_s is at most reconnect_s_max"),
    ],
)
def test_an_invalid_wait_is_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationFailed, match=says):
        Waits(**given)


def test_a_number_in_place_of_waits_is_refused(gateway: MemoryGateway) -> None:
    waits: Any = 5
    with (
        gateway.client("phone") as client,
        pytest.raises(ValidationFailed, match=r"waits must be Waits\(…\), not int"),
    ):
        client.connect(waits=waits)


@pytest.mark.law("K39")
def test_an_in_memory_client_edits_syncs_and_warns_of_unsent_edits_when_closed(
    gateway: MemoryGateway, caplog: pytest.LogCaptureFixture
) -> None:
    client = Client(":memory:", client_id="phone", transport=gateway.transport())
    file = client._file.database.writer.execute("PRAGMA database_list").fetchall()[0][2]
    client.insert("todos", "mine", {"title": "b"}).unwrap()
    known = client.attachments.add(b"bytes").unwrap()
    client.sync().unwrap()
    assert client.attachments.upload().unwrap().stored == 1
    assert client.attachments.path(known).unwrap() is not None
    assert client.query("SELECT title FROM todos ORDER BY 1", as_=tuple).unwrap() == [
        ("a",),
        ("b",),
    ]
    check_sound(client)
    client.update("todos", "mine", {"title": "c"}).unwrap()
    with caplog.at_level(logging.WARNING, "lakesync.client"):
        client.close()
        client.close()

    assert caplog.messages == [
        "a client in memory is closed: 1 edit waits for the gateway; this is lost"
    ]
    assert not Path(file).parent.exists()


@pytest.mark.law("K39")
def test_the_exit_of_a_forked_process_keeps_its_parents_in_memory_client(
    gateway: MemoryGateway,
) -> None:
    with Client(":memory:", client_id="phone", transport=gateway.transport()) as client:
        client.insert("todos", "mine", {"title": "b"}).unwrap()
        child = os.fork()
        if not child:
            assert client._memory is not None
            client._memory._remove()  # as the interpreter's end does
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert client._memory is not None
        assert client._memory.path.exists()
        assert client.get("todos", "mine").unwrap() == {"title": "b"}


def test_wiping_an_in_memory_client_removes_its_folder(gateway: MemoryGateway) -> None:
    client = Client(":memory:", client_id="phone", transport=gateway.transport())
    assert client._memory is not None
    folder = client._memory.path.parent
    client.wipe().unwrap()
    assert not folder.exists()


def test_two_in_memory_clients_share_no_tables_or_rows(gateway: MemoryGateway) -> None:
    with (
        Client(":memory:", client_id="a", transport=gateway.transport()) as one,
        Client(":memory:", client_id="b", transport=gateway.transport()) as other,
    ):
        one.insert("todos", "mine", {"title": "b"}).unwrap()
        assert other.query("SELECT name FROM sqlite_master WHERE name = 'todos'").unwrap() == []
        other.sync(mode="pull").unwrap()
        assert other.get("todos", "mine").unwrap() is None
        one.sync().unwrap()
