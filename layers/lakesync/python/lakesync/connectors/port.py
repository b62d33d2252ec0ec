"""The interface of connectors: outside systems whose rows are read page by page.

What a connector is given is here, too: its `Storage`, for what is too large for its cursor, what
the operator allows it, `Outside`, the base of its settings, and what verifies the signatures of
webhooks.

Your own connector must pass `lakesync.testing.connector_contract`, and is found by its entry point;
see ``docs/guide/connectors.md``.

Rules of signatures, which prove the sender, the time and the delivery's id
    1. The signature covers the received body, byte for byte; the body is not parsed before.
    2. Signatures are compared in constant time.
    3. The signature also covers the delivery's id and its time.
    4. Errors do not say which check failed, so a stranger learns nothing.

Laws N1-N6, N14: ``docs/spec/connectors.md``.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, Protocol, runtime_checkable

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel

from lakesync.adapters.lake.memory import MemoryAdapter
from lakesync.adapters.network import host_fault
from lakesync.core.names import check_table_name
from lakesync.errors import AuthFailed, NotFound, ValidationFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Self

    from lakesync.errors import LakeSyncError
    from lakesync.ports import ObjectStore
    from lakesync.result import Result

    Asks = Callable[[Mapping[str, Any]], Mapping[str, Any] | None]
    """Passes a question on (`AskedSource` of `systems.sql`); None if no answer came in time."""

FEED: Final = "(feed)"
"""The feed of a connector whose source has the changes of all tables in one sequence; first among
`ConnectorType.tables`, and not a table's name."""

KEPT_BYTES: Final = "keptBytes"
"""In `SourcePage.report`: bytes that the source retains for this connector. Has an alarm."""


class SourceColumn(NamedTuple):
    """One column of a source's table."""

    name: str
    type: str
    """Of `lakesync.core.column_types.TYPES`."""
    nullable: bool = True
    source_type: str = ""
    """The source's own name for its type, if it has one."""


@dataclass(frozen=True, slots=True)
class SourceTable:
    """One table of a source, as it can be read."""

    name: str
    """The source's name for the table, with which `Connector.read` is called."""
    columns: tuple[SourceColumn, ...]
    key: tuple[str, ...]
    """The columns of its key; empty if it has none and so cannot be read."""


class Change(NamedTuple):
    """A row as the source has it, or that it is gone."""

    row_id: str
    columns: Mapping[str, Any] | None
    """JSON values by column; None if the row was deleted."""
    changed_us: int | None = None
    """When the source changed it, in microseconds since 1970; None if the source does not say: then
    it is stamped with the poll's time. A deletion that is found by comparing has None: if the row
    comes back, it exists again, whatever its own time."""
    table: str = ""
    """The source's name for the change's table; empty for the table that was read."""
    hlc: int | None = None
    """The change's own stamp, from a source with stamps; replaces ``changed_us``."""


class Unreadable(NamedTuple):
    """A row that the connector cannot represent as JSON values."""

    row_id: str
    reason: str
    table: str = ""
    """As `Change.table`."""


@dataclass(frozen=True, slots=True)
class SourcePage:
    """Some of a table's changes, and where to read on."""

    changes: tuple[Change, ...]
    cursor: str
    """The next cursor: for this poll if there is more, else for the next poll. At most
    `lakesync.connectors.state.CURSOR_BYTES_MAX`."""
    has_more: bool
    unreadable: tuple[Unreadable, ...] = ()
    is_dated: bool = False
    """The connector itself ensures that later changes have later times, whatever the clock. Its
    times are used unchanged; they are ahead only by as much as keeps them distinct."""
    report: Mapping[str, str | int] = field(default_factory=dict)
    """The source's report on itself, shown with the connector; empty to keep the former one."""


class Connector(Protocol):
    """A source. Made for one poll or one request; used by one thread.

    Operational failures are an `Err`: `AdapterUnreachable` and others are retried, after the
    seconds that the source asks for; `AdapterRefused` and others need an administrator.
    """

    def check(self) -> Result[str, LakeSyncError]:
        """Check the configuration with the source; returns one sentence for people."""
        ...

    def discover(self) -> Result[tuple[SourceTable, ...], LakeSyncError]:
        """Return the tables that there are, with their columns, types and keys."""
        ...

    def read(
        self, table: str, cursor: str, *, rows_max: int, poll_ms: int
    ) -> Result[SourcePage, LakeSyncError]:
        """Return changes behind a cursor.

        A page of the same cursor and poll gives the same changes again, except for rows that
        changed meanwhile, with a later `Change.changed_us`.

        Args:
            table: a `SourceTable.name`, or `FEED`.
            cursor: `SourcePage.cursor` of the previous page, which is durable with all before it;
                empty for the very first page.
            rows_max: about how many changes it may give; bounds memory.
            poll_ms: when the poll began: the same for all of its pages, even if it was interrupted;
                later for each later poll.
        """
        ...

    def close(self) -> None:
        """Close connections."""
        ...


@runtime_checkable
class TellsColumns(Connector, Protocol):
    """A connector whose source tells its columns at little cost, so that changes are noticed."""

    def columns(self) -> Result[tuple[SourceTable, ...], LakeSyncError]:
        """Return the configured tables that exist, with the columns that are read."""
        ...


class Stretch(NamedTuple):
    """A range of consecutive rows of a table that can be read separately."""

    begins: str
    """The cursor of the first page."""
    ends: str
    """The cursor after its last page; empty if fewer rows are left than were requested, or if the
    table cannot be divided further."""


@runtime_checkable
class Divisible(Connector, Protocol):
    """A connector whose tables can be read in several stretches concurrently."""

    def ahead(
        self, table: str, cursor: str, rows: int, *, poll_ms: int
    ) -> Result[Stretch, LakeSyncError]:
        """Return the next rows behind a cursor as a stretch, without reading them.

        Args:
            table: a `SourceTable.name`.
            cursor: as for `Connector.read`.
            rows: how many rows it has at least.
            poll_ms: as for `Connector.read`.
        """
        ...

    def read_stretch(
        self, table: str, cursor: str, ends: str, *, rows_max: int, poll_ms: int
    ) -> Result[SourcePage, LakeSyncError]:
        """Return changes behind a cursor as `Connector.read` does, up to a stretch's end.

        The last page has no more rows behind it, and the cursor ``ends``.

        Args:
            table: a `SourceTable.name`.
            cursor: `Stretch.begins`, or `SourcePage.cursor` of the previous page.
            ends: `Stretch.ends`.
            rows_max: as for `Connector.read`.
            poll_ms: as for `Connector.read`.
        """
        ...


class Delivery(NamedTuple):
    """A webhook of the source, with a valid signature."""

    sent_ms: int
    """When it was sent, by the source's clock; the time of changes without their own."""
    body: bytes


@runtime_checkable
class TakesWebhooks(Connector, Protocol):
    """A connector that receives changes by webhooks, and is polled too."""

    def on_webhook(self, delivery: Delivery) -> Result[SourcePage, LakeSyncError]:
        """Return the changes of a delivery, each with its `Change.table`.

        They are the same as a poll gives, with the same times, so the next poll finds only
        duplicates. A body that cannot be read is a `lakesync.errors.ValidationFailed`. Another
        process may be polling, so this must not change what `read` keeps in the storage.
        """
        ...


@dataclass(frozen=True)
class WebhookType:
    """How a source signs what it sends."""

    secret: str
    """The JSON name of the setting with the secret; webhooks are refused if it is not set."""
    verify: Callable[[str, Mapping[str, str], bytes], Signed]
    """Verifies a delivery by the secret, the headers (names in lower case) and the body; see
    `lakesync.connectors.port`."""
    age_s_max: int = 300
    """The maximum age of a delivery's signature: longer if the source repeats undelivered ones
    under their first signature."""


@dataclass(frozen=True)
class ConnectorType:
    """A kind of connector: how it is configured, and how it is made."""

    name: str
    title: str
    """What people call the outside system."""
    configuration: type[BaseModel]
    """Its settings; those that are a `pydantic.SecretStr` are secrets."""
    make: Callable[[Any, Storage, Outside], Connector]
    """Makes a connector from valid settings; imports drivers but does not connect. Raises
    `lakesync.errors.ValidationFailed` if the operator does not allow it."""
    tables: Callable[[Any], Mapping[str, str]]
    """Gives the tables in the settings: the source's names, each with the gateway's."""
    forget: Callable[[Any, Storage, Any, Outside], str] | None = None
    """Removes what a connector created at its source, unless the new settings still use it (None:
    it is removed, or reset); says what remains there to be removed by hand. None if the type's
    connectors create nothing."""
    webhook: WebhookType | None = None
    """How its source signs webhooks; None if its connectors take none, and are not
    `TakesWebhooks`."""
    begins_at: Callable[[Any, str, str, int], str] | None = None
    """Gives the cursor from which changes since a time are read again. Takes the settings, the
    source's name for a table, its current cursor, and the time in microseconds since 1970; gives
    the current cursor if that is earlier, or empty. Raises `lakesync.errors.ValidationFailed` for a
    table without change times. None if no table of the type has them."""


# --- what the operator allows ---------------------------------------------------------------------


class Outside(NamedTuple):
    """The hosts and other means that the operator allows."""

    hosts: tuple[str, ...] = ()
    """Where HTTP requests may go; see `lakesync.connectors.http`."""
    aws: Callable[[str], Any] | None = None
    """Gives the client of an AWS service; an action's client does not retry."""
    databases: tuple[str, ...] = ()
    """Which databases' hosts may be reached that are not public; see `adapters.network`."""
    metrics: tuple[str, ...] = ()
    """Of which namespaces of CloudWatch metrics may be read; ``*`` for all."""
    asks: Asks | None = None
    """Asks sources that are databases, where this process cannot reach them; None if it can."""


NOTHING_ALLOWED: Final = Outside()
"""No host, no service."""


# --- storage --------------------------------------------------------------------------------------


PREFIX: Final = "connectors"
"""The prefix of all storage in the bucket: a gateway's is below ``connectors/<gateway>/``."""


class BroughtRows(NamedTuple):
    """Some rows that a connector brought to a table of the gateway, and that still exist."""

    row_ids: tuple[str, ...]
    place: str
    """Where to go on; empty once there are no more."""


class TellsBrought(Protocol):
    """Tells what a connector brought."""

    def __call__(self, table: str, place: str) -> BroughtRows:
        """Return some rows of a table of the gateway, from a place on; empty for the first."""
        ...


def _nothing_brought(table: str, place: str) -> BroughtRows:  # noqa: ARG001 - as `TellsBrought`
    """Return no rows: where there is no gateway."""
    return BroughtRows((), "")


class Storage:
    """JSON objects of one connector. Writes are whole; reads give the last write.

    Attributes:
        gateway: the gateway's id.
        name: the connector's.
        brought: tells which rows the gateway has from it.
        is_scratch: it is forgotten after a question about what is not registered.
    """

    def __init__(
        self,
        objects: ObjectStore,
        gateway: str,
        name: str,
        brought: TellsBrought = _nothing_brought,
    ) -> None:
        self.gateway = gateway
        self.name = name
        self.brought = brought
        self.is_scratch = False
        self._objects = objects
        self._prefix = f"{PREFIX}/{gateway}/{name}/"

    @classmethod
    def scratch(cls, gateway: str, name: str) -> Storage:
        """Return one in memory, for a question about what is not registered."""
        made = cls(MemoryAdapter(), gateway, name)
        made.is_scratch = True
        return made

    def read(self, *path: str) -> Any:
        """Return what was written at a path; None if nothing was."""
        try:
            return json.loads(self._objects.get_object(self._key(path)))
        except NotFound:
            return None

    def write(self, value: object, *path: str) -> None:
        """Write a JSON value at a path. Safe to repeat."""
        body = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
        self._objects.put_object(self._key(path), body, "application/json")

    def remove(self, *path: str) -> None:
        """Remove what was written at a path. Safe to repeat."""
        self._objects.delete_object(self._key(path))

    def names(self, *path: str) -> list[str]:
        """Return the last parts of all paths below one, in order."""
        prefix = f"{self._prefix}{'/'.join(path)}/"
        return [key.rpartition("/")[2] for key in self._objects.list_objects(prefix)]

    def paths(self) -> list[tuple[str, ...]]:
        """Return all paths at which something is written, in order."""
        keys = self._objects.list_objects(self._prefix)
        return [tuple(key.removeprefix(self._prefix).split("/")) for key in keys]

    def clear(self, keeping: str = "") -> None:
        """Remove everything, except one folder if it is named. Safe to repeat, and to kill."""
        for key in self._objects.list_objects(self._prefix):
            if not keeping or not key.startswith(f"{self._prefix}{keeping}/"):
                self._objects.delete_object(key)

    def _key(self, path: tuple[str, ...]) -> str:
        return self._prefix + "/".join(path)


def digest(*parts: str) -> str:
    """Return a name for any text: enough hexadecimal digits to avoid collisions."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


# --- settings -------------------------------------------------------------------------------------


TABLES_POLLED_MAX = 100
"""Tables of one connector: their cursors lie in one item."""
OVERLAP_S_MAX = 86_400
"""The longest duration of a source's transaction that changes a polled table."""
Name = Annotated[str, Field(min_length=1, max_length=128)]


def _host(value: str) -> str:
    if fault := host_fault(value):
        raise ValueError(fault)
    return value


Host = Annotated[Name, AfterValidator(_host)]


class Settings(BaseModel):
    """Settings in JSON have names like `cursorColumn`; unknown ones are refused."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, alias_generator=to_camel, hide_input_in_errors=True
    )


class NamedTable(Settings, ABC):
    """A table of a source: its name in the gateway is one that a table may have."""

    @property
    @abstractmethod
    def table(self) -> str:
        """The table's name in the gateway."""

    @model_validator(mode="after")
    def _named_well(self) -> Self:
        try:
            check_table_name(self.table, "as")
        except ValidationFailed as error:
            raise ValueError(error.message) from error
        return self


# --- signatures of webhooks -----------------------------------------------------------------------


SECRET_BYTES_MIN: Final = 24
"""The shortest signing secret, as Standard Webhooks has it."""
SECRET_BYTES_MAX: Final = 64
"""The longest signing secret, as Standard Webhooks has it."""
SIGNATURES_MAX: Final = 8
"""Signatures of one delivery that are checked: a sender that rotates its secret sends two."""
SIGNATURE_REFUSED: Final = (
    "no webhook is accepted here with such a signature: check its address and its secret"
)
_WHSEC: Final = "whsec_"


class Signed(NamedTuple):
    """What a signature that is right says."""

    delivery: str
    """The same whenever the delivery is sent again."""
    sent_ms: int


def signing_key(secret: str) -> bytes:
    """Return the key of a signing secret of Standard Webhooks.

    Raises:
        ValueError: it is not one.
    """
    try:
        decoded = base64.b64decode(secret.removeprefix(_WHSEC), validate=True)
    except binascii.Error:
        decoded = b""
    if not secret.startswith(_WHSEC) or not SECRET_BYTES_MIN <= len(decoded) <= SECRET_BYTES_MAX:
        raise ValueError(
            f"a signing secret is {_WHSEC} and base64 of {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} "
            "random bytes"
        )
    return decoded


def signature_of(secret: str, webhook_id: str, seconds: int, body: bytes) -> str:
    """Return the header ``webhook-signature`` of Standard Webhooks."""
    content = f"{webhook_id}.{seconds}.".encode() + body
    digest = hmac.new(signing_key(secret), content, hashlib.sha256).digest()
    return f"v1,{base64.b64encode(digest).decode()}"


def standard_webhook(secret: str, headers: Mapping[str, str], body: bytes) -> Signed:
    """Verify a delivery of `Standard Webhooks <https://www.standardwebhooks.com>`_.

    Raises:
        AuthFailed: it is not signed with the secret.
    """
    webhook_id, seconds = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
    given = headers.get("webhook-signature", "").split()[:SIGNATURES_MAX]
    if not webhook_id or not is_number(seconds):
        raise AuthFailed(SIGNATURE_REFUSED)
    try:
        right = signature_of(secret, webhook_id, int(seconds), body)
    except ValueError as exc:
        raise AuthFailed(SIGNATURE_REFUSED) from exc
    if not any(hmac.compare_digest(right.encode(), each.encode()) for each in given):
        raise AuthFailed(SIGNATURE_REFUSED)
    return Signed(webhook_id, 1000 * int(seconds))


def check_hub_signature(secret: str, headers: Mapping[str, str], body: bytes) -> str:
    """Verify WebSub's header ``X-Hub-Signature``; returns the delivery's id.

    It signs only the body, so the body must include the time.

    Raises:
        AuthFailed: it is not signed with the secret.
    """
    given = headers.get("x-hub-signature", "")
    digest = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
    if not hmac.compare_digest(f"sha256={digest}".encode(), given.encode()):
        raise AuthFailed(SIGNATURE_REFUSED)
    return hashlib.sha256(body).hexdigest()


def is_number(text: str) -> bool:
    """Return whether text is a number of seconds or milliseconds."""
    return text.isascii() and text.isdecimal() and len(text) <= 15  # noqa: PLR2004 - any real time
