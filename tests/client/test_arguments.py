"""What an app hands over and cannot be right is refused where it is given, in words."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from lakesync.client import Client, SyncLoop
from lakesync.errors import LakeSyncError, ValidationFailed
from lakesync.result import Err
from lakesync.testing.memory_gateway import MemoryGateway

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[MemoryGateway]:
    """Yield a gateway in memory."""
    with MemoryGateway(tmp_path) as gateway:
        yield gateway


@pytest.mark.parametrize("every_s", [None, "30", 0, -1, math.nan, True, [], Decimal(30)])
@pytest.mark.law("K17")
def test_an_invalid_sync_interval_is_refused_and_the_running_loop_continues(
    gateway: MemoryGateway, every_s: Any
) -> None:
    with gateway.client("phone") as client:
        loop = client.connect()
        with pytest.raises(ValidationFailed, match="every_s must be a number of seconds above 0"):
            client.connect(every_s=every_s)
        assert loop.is_running()
        with pytest.raises(ValidationFailed, match="every_s"):
            SyncLoop(client, every_s=every_s)


@pytest.mark.parametrize("every_s", [math.inf, 1e300, 10**400])
def test_a_sync_interval_may_be_longer_than_a_thread_can_wait(
    gateway: MemoryGateway, every_s: float
) -> None:
    with gateway.client("phone") as client:
        client.connect(every_s=every_s)
        client.insert("todos", "t1").unwrap()
        with client.watch_status() as states:
            assert any(status.has_synced and not status.pending for status in states)
        assert gateway.rows("todos")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"client_id": None}, "client_id must be text, not NoneType"),
        ({"client_id": uuid4()}, "client_id must be text, not UUID"),
        ({"client_id": b"phone"}, "client_id must be text, not bytes"),
        ({"client_id": ["phone"]}, "client_id must be text, not list"),
        ({"transport": None}, "transport must be a transport, .* not NoneType"),
        ({"transport": "https://example.com"}, "transport must be a transport, .* not str"),
        ({"wall_clock": 1_700_000_000_000}, "wall_clock must be a function"),
        ({"gather_ms": "16"}, "gather_ms must be 0 to 60000, not '16'"),
        ({"gather_ms": math.nan}, "gather_ms must be 0 to 60000, not nan"),
        ({"page_deltas": None}, "page_deltas must be 1 to 10000, not None"),
        ({"first_tables": None}, "first_tables must be names of tables"),
        ({"first_tables": b"todos"}, "first_tables must be names of tables"),
        ({"first_tables": ["todos", 1]}, "first_tables must be names of tables"),
    ],
)
def test_a_client_with_an_invalid_argument_is_refused_before_its_file_is_created(
    gateway: MemoryGateway, tmp_path: Path, given: dict[str, Any], says: str
) -> None:
    right: dict[str, Any] = {"client_id": "phone", "transport": gateway.transport()}
    with pytest.raises(ValidationFailed, match=says):
        Client(tmp_path / "new.db", **(right | given))
    assert not (tmp_path / "new.db").exists()


@pytest.mark.law("U8")
@pytest.mark.parametrize("client_id", ["_", "connector:shop"])
def test_a_reserved_client_id_is_refused_before_the_file_is_created(
    gateway: MemoryGateway, tmp_path: Path, client_id: str
) -> None:
    with pytest.raises(ValidationFailed, match="no client id of an app"):
        Client(tmp_path / "new.db", client_id=client_id, transport=gateway.transport())
    assert not (tmp_path / "new.db").exists()


@pytest.mark.parametrize("path", [None, 7, b"app.db", ["app.db"]])
def test_a_client_path_that_is_neither_text_nor_a_path_is_refused(
    gateway: MemoryGateway, path: Any
) -> None:
    with pytest.raises(ValidationFailed, match=r"path must be text or a pathlib\.Path, not"):
        Client(path, client_id="phone", transport=gateway.transport())


@pytest.mark.parametrize("tables", [7, [None], b"todos", [b"todos"], {1: 2}])
def test_a_callback_subscription_with_invalid_table_names_is_refused(
    gateway: MemoryGateway, tables: Any
) -> None:
    with gateway.client("phone") as client:
        for subscribe in (client.on_change, client.on_conflict):
            with pytest.raises(ValidationFailed, match="tables must be names of tables"):
                subscribe(print, tables)


@pytest.mark.law("X11")
def test_an_action_whose_callback_is_not_callable_is_not_queued(gateway: MemoryGateway) -> None:
    callback: Any = "show"
    with gateway.client("phone") as client:
        with pytest.raises(ValidationFailed, match="a callback is a function"):
            client.actions.run("shipping", "ship", on_result=callback)
        assert client.actions.pending().unwrap() == []


def _no_bytes(odd: Any) -> Any:
    return 1.5 if isinstance(odd, bytes) or not odd else odd


ODD: list[Any] = [None, 7, b"x", [], {}, object(), 10**30, "\ud800"]
CALLS: list[Callable[[Client, Any], Any]] = [
    lambda client, odd: client.retry(odd),
    lambda client, odd: client.discard(odd),
    lambda client, odd: client.amend(odd, {"a": 1}),
    lambda client, odd: client.actions.find(odd),
    lambda client, odd: client.actions.retry(odd),
    lambda client, odd: client.actions.discard(odd),
    lambda client, odd: client.actions.run("shipping", "ship", idempotency_key=odd),
    lambda client, odd: client.attachments.add(_no_bytes(odd)),
    lambda client, odd: client.attachments.add(b"bytes", media_type=_no_bytes(odd)),
    lambda client, odd: client.attachments.path(odd),
]


@pytest.mark.parametrize("odd", ODD, ids=range(len(ODD)))
@pytest.mark.parametrize("call", CALLS, ids=range(len(CALLS)))
def test_an_invalid_id_is_reported_as_the_callers_error(
    gateway: MemoryGateway, call: Callable[[Client, Any], Any], odd: Any
) -> None:
    with gateway.client("phone") as client:
        result = call(client, odd)

        assert isinstance(result, Err)
        error: LakeSyncError = result.error
        assert error.code in {"VALIDATION_ERROR", "NOT_FOUND", "ACTION_VALIDATION_ERROR"}, error
