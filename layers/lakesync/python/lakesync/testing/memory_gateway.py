"""`MemoryGateway`: a gateway in the test's own process, for tests of an app.

It is the gateway's own code on a buffer in memory: it merges, refuses, applies sync rules and
schemas, and encodes requests and answers as a network would. Actions are a test's own functions,
each run once; attachments are kept in memory.
"""

from __future__ import annotations

import json
import random
import threading
import time
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, Self

from lakesync.actions.engine import UNKNOWN, Done, Engine, Prepared, SupportedAction, check_params
from lakesync.adapters.lake.memory import MemorySignedObjects
from lakesync.buffer.admin_stores import ItemRuns
from lakesync.buffer.memory_buffer import MemoryBuffer
from lakesync.buffer.memory_items import MemoryItemStore
from lakesync.client import AsyncClient, Client, MemoryTransport
from lakesync.client.gateway_http import connector_types_in
from lakesync.core.attachments import ATTACHMENT_BYTES_MAX
from lakesync.core.clock import stamp
from lakesync.core.gateway_identity import check_identity
from lakesync.core.merge import view
from lakesync.core.messages import (
    Action,
    ActionAnswers,
    ActionDescription,
    ActionOutcome,
    ActionRefused,
    refusal,
)
from lakesync.errors import (
    ActionNotSupported,
    LakeSyncError,
    NotFound,
    Unreachable,
    ValidationFailed,
)
from lakesync.gateway.admin import AdminService
from lakesync.gateway.attachments import AttachmentService
from lakesync.gateway.pull import PullService
from lakesync.gateway.push import PushService
from lakesync.result import Err, Ok, Result
from lakesync.wire.records import decode_row_state

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from lakesync.actions.engine import Looked, Run
    from lakesync.core.attachments import Attachment
    from lakesync.core.messages import ActionPush, Pull, PullPage, Push, PushReceipt
    from lakesync.core.schema import Schemas
    from lakesync.gateway.attachments import AttachmentRows
    from lakesync.ports import (
        ConnectorDescription,
        Hearer,
        Listening,
        SignedRequest,
        UploadState,
        WallClock,
    )

# --- attachments ----------------------------------------------------------------------------------


class MemoryAttachments:
    """The attachments of one gateway in memory."""

    def __init__(self, rows: AttachmentRows) -> None:
        self.objects = MemorySignedObjects()
        self.service = AttachmentService(rows, self.objects, bytes_max=ATTACHMENT_BYTES_MAX)


class CarriesInMemory:
    """`lakesync.ports.CarriesAttachments` to a gateway in the same process.

    Args:
        attachments: gives the service, and raises if no request may arrive now.
        gateway: the gateway's name.
        claims: gives the claims of the client's token.
    """

    def __init__(
        self,
        attachments: Callable[[], MemoryAttachments],
        gateway: str,
        claims: Callable[[], Mapping[str, Any]],
    ) -> None:
        self._attachments = attachments
        self._gateway_name = gateway
        self._claims = claims

    def ask_upload(
        self, reference: Attachment, parts: Sequence[str], upload: str, epoch: str = ""
    ) -> UploadState:
        """Ask how far an upload is, and for what is to be sent next."""
        service = self._attachments().service
        return service.upload(self._gateway_name, str(reference), list(parts), upload, epoch)

    def ask_download(
        self, table: str, row_id: str, column: str, reference: Attachment
    ) -> SignedRequest:
        """Ask for what reads an attachment that a cell refers to."""
        service, place = self._attachments().service, (table, row_id, column)
        return service.download(self._gateway_name, self._claims(), place, str(reference))

    def send_bytes(self, request: SignedRequest, content: bytes) -> None:
        """Store the bytes."""
        self._attachments().objects.send_bytes(request, content)

    def receive_bytes(self, request: SignedRequest, start: int) -> Iterator[bytes]:
        """Yield the bytes, piece by piece; it ends early when the gateway goes offline."""
        for piece in self._attachments().objects.receive_bytes(request, start):
            self._attachments()
            yield piece


# --- transport ------------------------------------------------------------------------------------


class Listeners:
    """The clients that are notified of changes, as over sockets that are open or not."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._hearers: list[Hearer] = []
        self.is_open = True

    def add(self, hearer: Hearer) -> Listening:
        """Tell a client of what changes from now on."""
        with self._lock:
            self._hearers.append(hearer)
        hearer.on_connected(is_open=self.is_open)
        return _Listening(self, hearer)

    def remove(self, hearer: Hearer) -> None:
        """Tell a client no more; safe to repeat."""
        with self._lock:
            self._hearers = [other for other in self._hearers if other is not hearer]
        hearer.on_connected(is_open=False)

    def set_open(self, *, is_open: bool) -> None:
        """Open or close all sockets; whoever comes back asks what has changed."""
        self.is_open = is_open
        for hearer in self._listed():
            hearer.on_connected(is_open=is_open)
        self.wake()

    def wake(self, *, all_but: str = "") -> None:
        """Poke all clients but one."""
        for hearer in self._listed() if self.is_open else []:
            if hearer.client_id != all_but:
                hearer.wake()

    def _listed(self) -> list[Hearer]:
        with self._lock:
            return list(self._hearers)


class _Listening:
    def __init__(self, listeners: Listeners, hearer: Hearer) -> None:
        self._listeners = listeners
        self._hearer = hearer

    def stop(self) -> None:
        """End it."""
        self._listeners.remove(self._hearer)


class Serves(Protocol):
    """What answers the clients: a `MemoryGateway`."""

    listeners: Listeners

    @property
    def name(self) -> str:
        """Return its id."""
        ...

    def push(self, gateway: str, push: Push) -> PushReceipt:
        """Answer a push."""
        ...

    def pull(self, gateway: str, pull: Pull) -> PullPage:
        """Answer a pull."""
        ...

    def run_actions(self, gateway: str, push: ActionPush, /) -> ActionAnswers:
        """Answer who asks for actions."""
        ...

    def discover_actions(self, gateway: str, /) -> dict[str, list[ActionDescription]]:
        """Answer who asks which there are."""
        ...

    def attachments(self) -> MemoryAttachments:
        """Return the attachments."""
        ...

    def schemas_for(self, claims: Mapping[str, Any]) -> Schemas:
        """Return the schemas that a client may see."""
        ...


class GatewayTransport(MemoryTransport, CarriesInMemory):
    """How one client reaches a `MemoryGateway`; ``faults`` are applied to its next requests.

    ``claims`` are those of its token; set others and the rules decide by those.
    """

    def __init__(self, gateway: Serves, claims: Mapping[str, Any]) -> None:
        service = self._Service(self)
        MemoryTransport.__init__(self, gateway.name, service, service, actions=service)
        self.claims = dict(claims)
        CarriesInMemory.__init__(self, gateway.attachments, gateway.name, lambda: self.claims)
        self.gateway = gateway

    class _Service:
        def __init__(self, transport: GatewayTransport) -> None:
            self._transport = transport

        def push(self, gateway: str, push: Push) -> PushReceipt:
            to = self._transport
            return to.gateway.push(gateway, replace(push, claims=to.claims))

        def pull(self, gateway: str, pull: Pull) -> PullPage:
            to = self._transport
            return to.gateway.pull(gateway, replace(pull, claims=to.claims))

        def run_actions(self, gateway: str, push: ActionPush) -> ActionAnswers:
            return self._transport.gateway.run_actions(gateway, push)

        def discover_actions(self, gateway: str) -> dict[str, list[ActionDescription]]:
            return self._transport.gateway.discover_actions(gateway)

    def connector_types(self) -> list[ConnectorDescription]:
        """Fetch the types of connectors, as a gateway that was deployed from here has them."""
        from lakesync.connectors.registry import all_described  # noqa: PLC0415 - few tests ask

        return connector_types_in(json.dumps(all_described()).encode())

    def schemas(self) -> Schemas:
        """Fetch the schemas of the tables that the client may see."""
        return self.gateway.schemas_for(self.claims)

    def listen(self, hearer: Hearer) -> Listening:
        """Tell a client when another has pushed; see `lakesync.ports.Listens`."""
        return self.gateway.listeners.add(hearer)


# --- actions --------------------------------------------------------------------------------------


class _Asker(NamedTuple):
    user: str
    claims: Mapping[str, Any]
    is_administrator: bool = True


class _Function:
    """`lakesync.actions.ActionHandler` of one function."""

    def __init__(self, function: Callable[[Mapping[str, Any]], Mapping[str, Any] | None]) -> None:
        self._function = function

    def supported_actions(self) -> list[SupportedAction]:
        """Tell nothing: the gateway knows."""
        return []

    def execute(self, run: Run) -> Result[Done, LakeSyncError]:
        """Call it; what it raises of `lakesync.errors` is how it failed."""
        try:
            return Ok(Done(self._function(run.params) or {}))
        except LakeSyncError as error:
            return Err(error)

    def lookup(self, run: Run) -> Result[Looked, LakeSyncError]:
        """Tell that nobody knows: a function is not asked what it did."""
        del run
        return Ok(UNKNOWN)

    def close(self) -> None:
        """Hold nothing."""


class MemoryActions:
    """Actions of one gateway in memory, by the code that runs them in a deployed one."""

    def __init__(self, wall_clock: WallClock) -> None:
        self._wall_clock = wall_clock
        self._known: dict[tuple[str, str], tuple[_Function, ActionDescription]] = {}
        self._engine = Engine(
            ItemRuns(MemoryItemStore()),
            self._prepared,
            token=lambda: uuid.uuid4().hex,
            wall_clock=wall_clock,
            note=lambda _: None,
        )

    def add(
        self,
        connector: str,
        description: ActionDescription,
        function: Callable[[Mapping[str, Any]], Mapping[str, Any] | None],
    ) -> None:
        """Let a function be an action."""
        self._known[connector, description.action_type] = _Function(function), description

    def run(self, push: ActionPush) -> ActionAnswers:
        """Answer a client that asks for actions."""
        results = tuple(self._one(action) for action in push.actions)
        return ActionAnswers(results, stamp(self._wall_clock()))

    def _one(self, action: Action | ActionRefused) -> ActionOutcome:
        if isinstance(action, ActionRefused):
            return refusal(action.action_id, action.error)
        asker: Any = _Asker(action.client_id, {})
        try:
            return self._engine.run("test", asker, action)[0]
        except LakeSyncError as error:
            return refusal(action.action_id, error)

    def _prepared(self, _gateway: str, _asker: object, action: Action) -> Prepared:
        known = self._known.get((action.connector, action.action_type))
        if known is None:
            raise ActionNotSupported("there is no such action here: name it by `on_action`")
        function, description = known
        if description.params_schema:
            check_params(description.params_schema, action.params)
        return Prepared(lambda: function)

    def discover(self) -> dict[str, list[ActionDescription]]:
        """Answer a client that asks which actions there are."""
        connectors: dict[str, list[ActionDescription]] = {}
        for (connector, _), (_, description) in sorted(self._known.items()):
            connectors.setdefault(connector, []).append(description)
        return connectors


# --- the gateway ----------------------------------------------------------------------------------


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
        from lakesync.declare.schemas import read_schema  # noqa: PLC0415 - pydantic

        with self._lock:
            self._admin.register_schema(self.name, read_schema(json.loads(json.dumps(schema))))

    def put_rules(self, rules: Mapping[str, Any]) -> None:
        """Save sync rules, as ``lakesync rules put`` does."""
        from lakesync.declare.sync_rules import rules_reader  # noqa: PLC0415 - pydantic

        with self._lock:
            self._admin.save_rules(self.name, rules_reader(json.loads(json.dumps(rules))))
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
