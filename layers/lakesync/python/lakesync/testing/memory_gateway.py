"""`MemoryGateway`: a gateway in the test's own process, for tests of an app.

It is the gateway's own code on a buffer in memory: it merges, refuses, applies sync rules and
schemas, and encodes requests and answers as a network would.
"""

from __future__ import annotations

import json
import random
import threading
import time
import uuid
from typing import TYPE_CHECKING, Any, Final, Self

from lakesync.buffer.memory import MemoryBuffer
from lakesync.client import AsyncClient, Client
from lakesync.core.actions import ActionDescription
from lakesync.core.epoch import check_identity
from lakesync.core.merge import view
from lakesync.errors import NotFound, Unreachable, ValidationFailed
from lakesync.gateway.admin import AdminService
from lakesync.gateway.pull import PullService
from lakesync.gateway.push import PushService
from lakesync.testing.memory_attachments import MemoryAttachments
from lakesync.testing.memory_transport import GatewayTransport, Listeners
from lakesync.wire.row_state import decode_row_state

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from lakesync.core.actions import ActionAnswers, ActionPush
    from lakesync.core.messages import Pull, PullPage, Push, PushReceipt
    from lakesync.core.schema import Schemas
    from lakesync.ports import WallClock
    from lakesync.testing.memory_actions import MemoryActions

_ROWS_READ: Final = 1_000


class _Chance:
    def jitter(self) -> float:
        return random.random()  # noqa: S311 - spreads retries, hides nothing

    def token(self) -> str:
        return uuid.uuid4().hex


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class MemoryGateway:
    """A gateway in memory, and the clients that a test opens. Safe to use from several threads.

    ::

        with MemoryGateway(tmp_path) as gateway:
            phone, laptop = gateway.client("phone"), gateway.client("laptop")

    Args:
        folder: where the clients' files are.
        wall_clock: the gateway's clock, in milliseconds since 1970.
    """

    name: Final = "test"

    def __init__(self, folder: Path | str, *, wall_clock: WallClock = _now_ms) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._buffer = MemoryBuffer()
        services: dict[str, Any] = {
            "wall_clock": wall_clock,
            "sleep_ms": lambda ms: time.sleep(ms / 1000),
            "chance": _Chance(),
        }
        self._admin = AdminService(self._buffer, **services)
        self._pushes = PushService(self._buffer, **services)
        self._pulls = PullService(self._buffer, wall_clock=wall_clock)
        self._wall_clock = wall_clock
        self._actions: MemoryActions | None = None
        self._attachments = MemoryAttachments(self._buffer)
        self._clients: list[Client] = []
        self.listeners = Listeners()

    @property
    def online(self) -> bool:
        """Set it to False, and no request arrives, and nobody is told of changes."""
        return self.listeners.is_open

    @online.setter
    def online(self, is_online: bool) -> None:
        self.listeners.set_open(is_open=is_online)

    def transport(self, **claims: Any) -> GatewayTransport:
        """Return a way to this gateway, for a client whose token says this."""
        return GatewayTransport(self, claims)

    def client(
        self, client_id: str, *, claims: Mapping[str, Any] | None = None, **options: Any
    ) -> Client:
        """Open a client; after the test closes it, opening it again finds its file.

        ``claims`` are those of its token; its ``sub`` is the client's id if they leave it out.
        """
        transport = self.transport(**{"sub": client_id, **(claims or {})})
        client = Client(self._path(client_id), client_id=client_id, transport=transport, **options)
        self._clients.append(client)
        return client

    def async_client(
        self, client_id: str, *, claims: Mapping[str, Any] | None = None, **options: Any
    ) -> AsyncClient:
        """Open a client for asyncio, as `client` does; the test closes it."""
        transport = self.transport(**{"sub": client_id, **(claims or {})})
        return AsyncClient(
            self._path(client_id), client_id=client_id, transport=transport, **options
        )

    def _path(self, client_id: str) -> str:
        if not client_id.replace("-", "").replace("_", "").isalnum():
            raise ValidationFailed("in tests a client id is letters, digits, - and _")
        return f"{self._folder}/{client_id}.db"

    def put_schema(self, schema: Mapping[str, Any]) -> None:
        """Register a table's schema, as ``lakesync schema put`` does."""
        with self._lock:
            self._admin.register_schema(self.name, json.loads(json.dumps(schema)))

    def put_rules(self, rules: Mapping[str, Any]) -> None:
        """Save sync rules, as ``lakesync rules put`` does."""
        with self._lock:
            self._admin.save_rules(self.name, json.loads(json.dumps(rules)))
        self.listeners.wake()

    def on_action(
        self,
        connector: str,
        action: str,
        function: Callable[[Mapping[str, Any]], Mapping[str, Any] | None],
        *,
        description: str = "",
        params_schema: Mapping[str, Any] | None = None,
    ) -> None:
        """Have a function do the actions that clients request: with the parameters, once for each.

        Its return value is the action's result. An exception of `lakesync.errors` is its failure:
        `ActionFailed` for good, `Unavailable` for now; any other exception leaves the outcome
        unknown. Parameters are checked first against a ``params_schema``, which needs the package
        ``jsonschema-rs``.
        """
        described = ActionDescription(action, description, params_schema or {})
        self._acting().add(connector, described, function)

    def _acting(self) -> MemoryActions:
        if self._actions is None:
            from lakesync.testing.memory_actions import MemoryActions  # noqa: PLC0415 - few tests run any

            self._actions = MemoryActions(self._wall_clock)
        return self._actions

    def rows(self, table: str) -> dict[str, dict[str, Any]]:
        """Return a table's rows by their ids, as the gateway has them, regardless of visibility."""
        rows: dict[str, dict[str, Any]] = {}
        place = ""
        while True:
            with self._lock:
                config = self._buffer.config(self.name)
                part = self._buffer.scan_rows(self.name, table, place, _ROWS_READ)
            for row_id, stored in part.rows:
                columns = view(config.as_read(table, decode_row_state(stored.state)))
                if columns is not None:
                    rows[row_id] = {name: json.loads(value) for name, value in columns.items()}
            place = part.place
            if not place:
                return rows

    def push(self, gateway: str, push: Push) -> PushReceipt:
        """Answer a push."""
        with self._reached():
            receipt = self._pushes.push(gateway, push)
        self.listeners.wake(all_but=push.client_id)
        return receipt

    def pull(self, gateway: str, pull: Pull) -> PullPage:
        """Answer a pull."""
        if pull.source:
            raise NotFound("a gateway in memory has no sources", field="source")
        with self._reached():
            return self._pulls.pull(gateway, pull)

    def run_actions(self, gateway: str, push: ActionPush) -> ActionAnswers:
        """Answer a client that requests actions; its functions may edit at this gateway."""
        with self._reached():
            check_identity(push.epoch, self._buffer.epoch(gateway))
            acting = self._acting()
        return acting.run(push)

    def discover_actions(self, _gateway: str) -> dict[str, list[ActionDescription]]:
        """Answer a client that asks which actions there are."""
        with self._reached():
            return self._acting().discover()

    def attachments(self) -> MemoryAttachments:
        """Answer a client that uploads or downloads attachments."""
        with self._reached():
            return self._attachments

    def schemas_for(self, claims: Mapping[str, Any]) -> Schemas:
        """Answer a client that asks for the schemas."""
        with self._reached():
            return self._admin.schemas_for(self.name, claims)

    def _reached(self) -> threading.Lock:
        if not self.online:
            raise Unreachable("the test has taken the gateway offline")
        return self._lock

    def close(self) -> None:
        """Close the clients that `client` opened."""
        for client in self._clients:
            client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
