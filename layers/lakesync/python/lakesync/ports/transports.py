"""What carries data in and out: clients' transports, the gateway's sockets, objects and queues.

The store of attachments signs addresses, to which clients send the bytes themselves.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from lakesync.core.attachments import Attachment
    from lakesync.core.clock import Stamp
    from lakesync.core.messages import (
        ActionAnswers,
        ActionDescription,
        ActionPush,
        Pull,
        PullPage,
        Push,
        PushReceipt,
    )
    from lakesync.core.schema import Schemas

# --- a client's transport -------------------------------------------------------------------------


@runtime_checkable
class TellsSchemas(Protocol):
    """What a `Transport` may also do: give a client the schemas."""

    def schemas(self) -> Schemas:
        """Fetch the schemas of the tables that the client may see."""
        ...


class ConnectorDescription(NamedTuple):
    """A type of connector that the gateway has, for a form that asks for its settings."""

    type: str
    title: str
    """What people call the outside system."""
    configuration: Mapping[str, Any]
    """The JSON Schema of its settings; secrets are ``writeOnly``; empty with an ``error``."""
    error: str = ""
    """Why it cannot be used: its package cannot be imported there."""


@runtime_checkable
class TellsConnectorTypes(Protocol):
    """What a `Transport` may also do: tell which types of connectors there are."""

    def connector_types(self) -> list[ConnectorDescription]:
        """Fetch the types of connectors."""
        ...


class Transport(Protocol):
    """How a client reaches its gateway.

    Methods raise `lakesync.errors`: what the gateway answered, or `Unreachable` if nothing
    came back. Repeating either is always safe.
    """

    def push(self, push: Push) -> PushReceipt:
        """Push deltas; those that the receipt counts as accepted are durable."""
        ...

    def pull(self, pull: Pull) -> PullPage:
        """Fetch the next page."""
        ...


@runtime_checkable
class RunsActions(Protocol):
    """What a `Transport` may also do: have actions done. Raises as it does."""

    def run_actions(self, push: ActionPush) -> ActionAnswers:
        """Have actions run; an outcome that was answered as final stays so. Idempotent."""
        ...

    def discover_actions(self) -> dict[str, list[ActionDescription]]:
        """Ask which actions the client may run, by the names of their handlers."""
        ...


class Hearer(Protocol):
    """A receiver of changes: a client. Its methods may be called from any thread."""

    client_id: str
    heartbeat_s: float
    """How long a connection is silent before a keep-alive is sent over it, in seconds."""
    reconnect_s: float
    """The wait after a failure of the connection; it doubles with each further one."""
    reconnect_s_max: float
    """The longest such wait, unless the gateway asks for longer."""

    def hear(self, page: PullPage) -> bool:
        """Apply a broadcast that fits the cursor; True if it leaves nothing to pull."""
        ...

    def reads_again(self, page: PullPage) -> bool:
        """Return whether a broadcast shows that the next pull reads tables again.

        All clients that are told so by one change of rules would do it at the same moment.
        """
        ...

    def wake(self) -> None:
        """Sync now."""
        ...

    def next_pull(self) -> Pull:
        """Return the request for the deltas behind the cursor."""
        ...

    def is_current(self, page: PullPage) -> bool:
        """Return whether the answer to `next_pull` shows that nothing was missed."""
        ...

    def on_connected(self, *, is_open: bool, reason: str | None = None) -> None:
        """Note whether the connection that brings changes is open, and if not, the reason."""
        ...


class Listening(Protocol):
    """A listener that runs until it is stopped."""

    def stop(self) -> None:
        """End it. Idempotent."""
        ...


@runtime_checkable
class Listens(Protocol):
    """What a `Transport` may also do: notify a client of changes without being asked."""

    def listen(self, hearer: Hearer) -> Listening | None:
        """Begin to notify; None if there is nothing to listen to."""
        ...


@runtime_checkable
class DropsRequests(Protocol):
    """What a `Transport` may also do: give up requests that are no longer needed."""

    def drop_requests(self) -> None:
        """Make each request in flight fail at once as `Unreachable`; later ones work."""
        ...


# --- the gateway's open connections ---------------------------------------------------------------


CONNECTION_S_MAX: Final = 7_500
"""How long a connection is remembered: API Gateway ends each after two hours."""


@dataclass(frozen=True, slots=True)
class Connection:
    """One open WebSocket of a client."""

    gateway: str
    id: str
    """As API Gateway names it."""
    client_id: str
    user: str
    expires_s: float
    """When its token expires, in seconds since 1970; after that it is not served."""
    opened_ms: int
    claims: Mapping[str, Any]
    """The claims of the token, by which sync rules decide."""
    scope: str = ""
    """A digest of the scope in force when the connection was last examined."""
    rules: str = ""
    """A digest of the rules that gave the scope."""
    window: int = 0
    """The span of time for which its frames were last summed."""
    frames: int = 0
    """The number of frames in it."""
    is_json: bool = False
    """Its frames are JSON; else protobuf."""


@dataclass(frozen=True, slots=True)
class NotifyState:
    """How far the connections of a gateway have been notified."""

    notified: Stamp = 0
    """All commits up to here were broadcast; 0 if none ever was."""
    wanted: Stamp = 0
    """A commit that was left to the process in charge."""
    place: str = ""
    """Time ran out behind this connection: those with greater ids lack what was sent up to
    `notified`. "" if all were sent to."""


class Connections(Protocol):
    """The open WebSockets, and how far those of each gateway have been notified.

    Reads are strongly consistent. At most one process at a time notifies a gateway. A process that
    finds another in charge leaves its commit to that one, and no commit is lost between the two.
    """

    def add(self, connection: Connection) -> None:
        """Store a connection, or its changes."""
        ...

    def get(self, gateway: str, connection_id: str) -> Connection | None:
        """Return a connection; None if it is not stored."""
        ...

    def rescope(self, connection: Connection) -> None:
        """Store the scope of a connection, unless the connection was removed in the meantime."""
        ...

    def count_frames(self, connection: Connection, window: int, frames: int) -> bool:
        """Add to the frames that all processes accepted of a connection in a span of time.

        Returns:
            False if nothing was added: the connection is gone, or was read before another process
            began the span. After reading it again the frames may be added.
        """
        ...

    def remove(self, gateway: str, connection_id: str) -> None:
        """Remove a connection. Idempotent."""
        ...

    def of_gateway(self, gateway: str) -> tuple[list[Connection], NotifyState]:
        """Return all connections of a gateway, and how far they have been notified."""
        ...

    def scan(self, place: str) -> tuple[list[Connection], str]:
        """Return some connections of all gateways from a place on, and the next place, or ""."""
        ...

    def begin(self, gateway: str, owner: str, now_ms: int, until_ms: int) -> bool:
        """Become the process that notifies; False if another is in charge.

        Args:
            gateway: whose.
            owner: the caller: the same name may begin again what it began before.
            now_ms: the time, at which another's turn may have ended.
            until_ms: when the turn ends unless it is ended before.
        """
        ...

    def leave(self, gateway: str, commit: Stamp, now_ms: int) -> bool:
        """Leave a commit to the process in charge; False if there is none any more."""
        ...

    def hand_on(self, gateway: str, owner: str, state: NotifyState) -> None:
        """End the turn, and store where the next process continues; commits that were left stay.

        After another process took over the turn, this changes nothing.
        """
        ...

    def end(self, gateway: str, owner: str, notified: Stamp) -> bool:
        """Note how far was notified, and end the turn.

        Returns:
            False if a later commit was left in the meantime: then the turn continues.
        """
        ...


class Tickets(Protocol):
    """Tickets that open one WebSocket each, known by their digests alone."""

    def keep(self, digest: str, claims: Mapping[str, Any], until_ms: int) -> None:
        """Store what a ticket is good for.

        Args:
            digest: of the ticket, which itself is not stored.
            claims: those of the token that requested it, plain JSON.
            until_ms: when it expires.
        """
        ...

    def take(self, digest: str, now_ms: int) -> Mapping[str, Any] | None:
        """Return a ticket's claims, to one caller only; None if it is unknown, used or expired.

        The ticket is used even if the answer is lost: not idempotent.
        """
        ...


class FrameResult(Enum):
    """The result of sending a frame to a connection."""

    SENT = "sent"
    GONE = "gone"
    """The connection is closed."""
    BUSY = "busy"
    """Its reader is slow, or the account is throttled."""


class Sockets(Protocol):
    """The other side of the open WebSockets. Thread-safe."""

    def send(self, connection_id: str, frame: str) -> FrameResult:
        """Send a text frame.

        Raises:
            lakesync.errors.Unavailable: it is not known whether it was sent.
        """
        ...

    def close(self, connection_id: str) -> None:
        """Close a connection. Safe to repeat."""
        ...


# --- objects, queues and batches ------------------------------------------------------------------


class ObjectStore(Protocol):
    """Objects under keys: S3, or a dictionary in tests."""

    def put_object(self, key: str, body: bytes, content_type: str) -> None:
        """Store an object; storing the same again changes nothing."""
        ...

    def get_object(self, key: str) -> bytes:
        """Return an object's bytes.

        Raises:
            lakesync.errors.NotFound: it does not exist.
        """
        ...

    def get_range(self, key: str, start: int, size: int) -> bytes:
        """Return ``size`` bytes of an object from an offset on, fewer if it ends before.

        Raises:
            lakesync.errors.NotFound: the object does not exist, or ends before the offset.
        """
        ...

    def list_objects(self, prefix: str) -> list[str]:
        """Return the keys under a prefix, in order."""
        ...

    def delete_object(self, key: str) -> None:
        """Remove an object; idempotent."""
        ...


class Queue(Protocol):
    """Messages to the next stage, delivered at least once."""

    def send(self, body: str) -> None:
        """Send a message; when this returns it is durable."""
        ...


class BatchEncoder(Protocol):
    """One table's deltas as the bytes of one object."""

    def encode(self, rows: Sequence[BatchRow], columns: Mapping[str, str]) -> bytes:
        """Return the object; the same rows give the same bytes.

        Args:
            rows: the deltas in commit order.
            columns: the name in the object of each column that occurs.
        """
        ...


@dataclass(frozen=True, slots=True)
class BatchRow:
    """One delta in a batch for the lake."""

    commit: Stamp
    ordinal: int
    """Its place in the commit."""
    op: str
    row_id: str
    client_id: str
    hlc: Stamp
    delta_id: str
    columns: tuple[tuple[str, bytes], ...]


# --- attachments ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SignedRequest:
    """A request that its bearer may make for a limited time, and no other request."""

    url: str
    headers: Mapping[str, str]
    """Headers that must be sent exactly so: they are signed."""
    part: int = 1
    """Which part of the file it sends."""


@dataclass(frozen=True, slots=True)
class UploadState:
    """The progress of an upload, and what is to be sent next."""

    stored: bool
    """The whole file is stored, and matches its reference."""
    upload: str = ""
    """The id of the upload in parts: sent back when its next parts are requested."""
    requests: tuple[SignedRequest, ...] = ()
    """Requests for parts to send; then ask again."""
    parts_stored: int = 0
    """The number of stored parts."""


class SignedObjects(Protocol):
    """A store of objects that signs requests for others to make.

    An existing object is never replaced. Keys and digests are checked by the caller. Methods raise
    `lakesync.errors` when the store refuses or cannot be reached; all of them are idempotent.
    """

    def size_of(self, key: str) -> int | None:
        """Return the bytes of an object; None if there is none."""
        ...

    def sign_put(self, key: str, size_bytes: int, digest: str) -> SignedRequest:
        """Sign the request that stores an object of exactly this length and SHA-256."""
        ...

    def begin_upload(self, key: str) -> str:
        """Begin an upload in parts."""
        ...

    def parts(self, key: str, upload: str) -> Mapping[int, str] | None:
        """Return the stored parts, by number, with the store's id of each.

        None if there is no such upload of this object: it has ended, or never existed.
        """
        ...

    def sign_part(
        self, key: str, upload: str, number: int, size_bytes: int, digest: str
    ) -> SignedRequest:
        """Sign the request that stores a part of exactly this length and SHA-256."""
        ...

    def end_upload(
        self, key: str, upload: str, tags: Mapping[int, str], digests: Sequence[str]
    ) -> None:
        """Make an object from all parts, each with its SHA-256."""
        ...

    def sign_get(self, key: str, media_type: str) -> SignedRequest:
        """Sign the request that reads an object, any ``Range`` of it."""
        ...


@runtime_checkable
class CarriesAttachments(Protocol):
    """What a client's `Transport` may also do: bring files to the gateway, and fetch them."""

    def ask_upload(
        self, reference: Attachment, parts: Sequence[str], upload: str, epoch: str = ""
    ) -> UploadState:
        """Ask for the progress of an upload, and what to send next. Idempotent.

        Args:
            reference: names the file.
            parts: the digests of its parts.
            upload: what the last answer gave.
            epoch: the gateway's, as far as the client knows it; another one refuses.
        """
        ...

    def ask_download(
        self, table: str, row_id: str, column: str, reference: Attachment
    ) -> SignedRequest:
        """Ask for the request that reads an attachment to which a cell refers."""
        ...

    def send_bytes(self, request: SignedRequest, content: bytes) -> None:
        """Make a signed request that stores bytes; it is no error if they are stored already."""
        ...

    def receive_bytes(self, request: SignedRequest, start: int) -> Iterator[bytes]:
        """Make a signed request that reads bytes from an offset on, piece by piece."""
        ...
