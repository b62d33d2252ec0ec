"""The one error tree: a stable code, a sentence that says what to do, and when to try again.

::

    LakeSyncError
    ├── InvalidInput               the caller must change the request     Retry.NEVER
    │   ├── ValidationFailed       VALIDATION_ERROR
    │   │   └── InvalidCursor      INVALID_CURSOR
    │   ├── RulesRefused           SYNC_RULES_ERROR
    │   ├── DestinationRefused     DESTINATION_ERROR
    │   ├── FlowRefused            FLOW_ERROR
    │   ├── SchemaMismatch         SCHEMA_ERROR
    │   ├── RowTooLarge            ROW_TOO_LARGE
    │   ├── DeltaTooLarge          DELTA_TOO_LARGE
    │   ├── BodyTooLarge           BODY_TOO_LARGE
    │   ├── CheckpointTooLarge     CHECKPOINT_TOO_LARGE
    │   ├── AtomicPushTooLarge     ATOMIC_PUSH_TOO_LARGE
    │   ├── AtomicPushRefused      ATOMIC_PUSH_REFUSED
    │   ├── TooManyTables          TOO_MANY_TABLES
    │   ├── TooManyColumns         TOO_MANY_COLUMNS
    │   ├── TableNotDeclared       TABLE_NOT_DECLARED  rules or a schema   Retry.AFTER_REFRESH
    │   ├── NameTaken              NAME_TAKEN
    │   ├── RowForgotten           ROW_FORGOTTEN
    │   ├── RowDeleted             ROW_DELETED         pull, insert it     Retry.AFTER_REFRESH
    │   ├── EditRefused            EDIT_REFUSED
    │   ├── ActionInvalid          ACTION_VALIDATION_ERROR
    │   ├── ActionNotSupported     ACTION_NOT_SUPPORTED
    │   ├── OutOfOrder             OUT_OF_ORDER        stamp it again      Retry.AFTER_REFRESH
    │   └── NotFound               NOT_FOUND
    │       └── NotOffered         METHOD_NOT_ALLOWED
    ├── ClockDrift                 CLOCK_DRIFT         stamp it again      Retry.AFTER_REFRESH
    ├── AuthFailed                 AUTH_ERROR          get a fresh token   Retry.AFTER_REFRESH
    ├── Forbidden                  FORBIDDEN           another token       Retry.NEVER
    │   └── ColumnOmitted          COLUMN_OMITTED      without the column  Retry.NEVER
    ├── ClientTaken                CLIENT_TAKEN        another client id   Retry.NEVER
    ├── Revoked                    REVOKED             ask the operator    Retry.NEVER
    ├── GatewayDeleted             GATEWAY_DELETED     another gateway     Retry.NEVER
    ├── AnotherGateway             ANOTHER_GATEWAY     rebind the client   Retry.NEVER
    ├── Conflict                   CONFLICT            read again          Retry.AFTER_REFRESH
    ├── CursorExpired              CURSOR_EXPIRED      fetch a checkpoint  Retry.AFTER_REFRESH
    ├── Unavailable                UNAVAILABLE         the same again      Retry.LATER
    │   ├── SourceUnavailable      SOURCE_UNAVAILABLE
    │   ├── Contention             CONTENTION
    │   ├── Backpressure           BACKPRESSURE_ERROR
    │   ├── RateLimited            RATE_LIMITED
    │   ├── Unreachable            UNREACHABLE
    │   │   └── NotTheGateway      NOT_THE_GATEWAY
    │   ├── UpgradeRequired        UPGRADE_REQUIRED
    │   ├── TransactionOpen        TRANSACTION_OPEN
    │   ├── ActionRunning          ACTION_RUNNING
    │   ├── NotYetUploaded         NOT_YET_UPLOADED
    │   └── DamagedOnTheWay        DAMAGED_ON_THE_WAY
    ├── FileCorrupt                CORRUPT             salvage the file    Retry.NEVER
    ├── WrongKey                   WRONG_KEY           the file's own key  Retry.NEVER
    ├── AdapterFailed              ADAPTER_ERROR       the same again      Retry.LATER
    │   ├── AdapterUnreachable     ADAPTER_UNREACHABLE
    │   ├── AdapterTimedOut        ADAPTER_TIMED_OUT
    │   ├── AdapterQuotaExceeded   ADAPTER_QUOTA
    │   ├── OutcomeUnknown         ADAPTER_OUTCOME_UNKNOWN
    │   ├── AdapterRefused         ADAPTER_REFUSED     mend the other side Retry.NEVER
    │   └── ConstraintViolated     ADAPTER_CONSTRAINT  mend the other side Retry.NEVER
    ├── ActionFailed               ACTION_EXECUTION_ERROR another action  Retry.NEVER
    │   └── ActionOutcomeUnknown   UNKNOWN_OUTCOME     look there          Retry.NEVER
    ├── FlushFailed                FLUSH_ERROR         the same again      Retry.LATER
    └── InternalError              INTERNAL_ERROR      a bug: report it    Retry.NEVER

The same objects are carried by ``Err``, raised by ``unwrap()`` and answered over HTTP, WebSocket
and queues: `status` is the HTTP status, and there is no other table. Codes that existing LakeSync
clients know keep their spelling (``BACKPRESSURE_ERROR``, not ``BACKPRESSURE``).
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence


class Retry(Enum):
    """When the same operation may succeed."""

    NEVER = "never"
    """Only when the request is changed."""
    LATER = "later"
    """As it is, after `LakeSyncError.retry_after_s`."""
    AFTER_REFRESH = "after_refresh"
    """After the caller renewed what it holds: token, clock, cursor, version."""


class LakeSyncError(Exception):
    """What can go wrong in operation. ``str(error)`` is a sentence that says what to do."""

    code: ClassVar[str]
    status: ClassVar[int]
    retry: ClassVar[Retry] = Retry.NEVER
    wait_s: ClassVar[int] = 1
    """Seconds that a `Retry.LATER` takes as a rule."""
    public_message: ClassVar[str] = ""
    """What a caller over the network reads instead of the sentence, which is for the operator's log
    where it describes what lies behind the gateway; empty if the sentence is for the caller."""

    def __init__(
        self, message: str, *, field: str | None = None, retry_after_s: int | None = None
    ) -> None:
        super().__init__(_encodable(message))
        self.done: Any = None
        """What was done all the same: the summary of a push, pull or sync that could not end."""
        self.is_foreign = isinstance(self, NotTheGateway)
        """Something on the way to the gateway said this, so it decides nothing about an edit."""
        self.field = field
        self._retry_after_s = retry_after_s

    @property
    def field(self) -> str | None:
        """The part of the input at fault, as a path: ``deltas[3].hlc``."""
        return self._field

    @field.setter
    def field(self, path: str | None) -> None:
        self._field = None if path is None else _encodable(path)

    @property
    def message(self) -> str:
        """The sentence."""
        return str(self.args[0])

    @property
    def retry_after_s(self) -> int:
        """Seconds to wait before a `Retry.LATER`, as asked; 0 where waiting does not help."""
        if self._retry_after_s is not None:
            return self._retry_after_s
        return self.wait_s if self.retry is Retry.LATER else 0


class Fault(NamedTuple):
    """One of several faults of an input."""

    path: str
    """The part at fault: ``buckets[0].filters[1].column``."""
    message: str
    """What is wrong with it."""


class InvalidInput(LakeSyncError):
    """The request cannot be carried out as it is; a document's faults are all named."""

    status = 400

    def __init__(
        self,
        message: str,
        *,
        field: str | None = None,
        retry_after_s: int | None = None,
        faults: Sequence[Fault] = (),
    ) -> None:
        first = faults[0].path if faults else field
        super().__init__(message, field=first, retry_after_s=retry_after_s)
        self.faults = tuple(faults)


class ValidationFailed(InvalidInput):
    """A field is missing, malformed or out of its limits."""

    code = "VALIDATION_ERROR"


class InvalidCursor(ValidationFailed):
    """The cursor was never handed out by this gateway; pull again from 0."""

    code = "INVALID_CURSOR"


class RulesRefused(InvalidInput):
    """Sync rules are malformed or do not fit the schemas; correct every fault that is named."""

    code = "SYNC_RULES_ERROR"


class DestinationRefused(InvalidInput):
    """The declaration of a destination is malformed; correct every fault that is named."""

    code = "DESTINATION_ERROR"


class FlowRefused(InvalidInput):
    """The declaration of a flow is malformed; correct every fault that is named."""

    code = "FLOW_ERROR"


class SchemaMismatch(InvalidInput):
    """A delta does not fit its table's registered schema, or a schema is not sound."""

    code = "SCHEMA_ERROR"


class RowTooLarge(InvalidInput):
    """The merged row would not fit one item; store the large value elsewhere and sync its key."""

    code = "ROW_TOO_LARGE"
    status = 413


class DeltaTooLarge(InvalidInput):
    """One delta is over its limit; split the edit into several deltas."""

    code = "DELTA_TOO_LARGE"
    status = 413


class BodyTooLarge(InvalidInput):
    """The request body is over its limit; push fewer deltas at a time."""

    code = "BODY_TOO_LARGE"
    status = 413


class CheckpointTooLarge(InvalidInput):
    """A checkpoint does not fit one answer; ask for its parts."""

    code = "CHECKPOINT_TOO_LARGE"
    status = 404  # to existing clients there is none, and they pull from 0


class AtomicPushTooLarge(InvalidInput):
    """An atomic push does not fit one commit; make the transaction smaller or not atomic."""

    code = "ATOMIC_PUSH_TOO_LARGE"
    status = 413


class AtomicPushRefused(InvalidInput):
    """An atomic push was refused whole, because another of its deltas was refused."""

    code = "ATOMIC_PUSH_REFUSED"


class TooManyTables(InvalidInput):
    """The gateway has as many tables as it may have; use those there are, or another gateway."""

    code = "TOO_MANY_TABLES"
    status = 409


class TooManyColumns(InvalidInput):
    """The table has as many columns as it may have; put what varies into one JSON column."""

    code = "TOO_MANY_COLUMNS"
    status = 409


class TableNotDeclared(InvalidInput):
    """Neither a bucket nor a schema names the table; it is tried again once one does."""

    code = "TABLE_NOT_DECLARED"
    status = 409
    retry = Retry.AFTER_REFRESH


class NameTaken(InvalidInput):
    """A table, or a column of it, is there under another spelling; use the one that was first."""

    code = "NAME_TAKEN"
    status = 409


class RowForgotten(InvalidInput):
    """A delta is older than deletions are remembered, and its row may be one; edit it anew."""

    code = "ROW_FORGOTTEN"
    status = 409


class RowDeleted(InvalidInput):
    """An update's row was deleted, and rules filter its table; pull, then insert the whole row."""

    code = "ROW_DELETED"
    status = 409
    retry = Retry.AFTER_REFRESH


class EditRefused(InvalidInput):
    """An edit was refused that an action waits for, so it was not sent; mend it, then retry."""

    code = "EDIT_REFUSED"
    status = 409


class ActionInvalid(InvalidInput):
    """An action or its parameters are not as its schema says; nothing was run."""

    code = "ACTION_VALIDATION_ERROR"


class ActionNotSupported(InvalidInput):
    """There is no such action handler, or it knows no such action; ask which there are."""

    code = "ACTION_NOT_SUPPORTED"
    status = 404


class OutOfOrder(InvalidInput):
    """An append delta is older than its client's last accepted one; stamp it again and push."""

    code = "OUT_OF_ORDER"
    retry = Retry.AFTER_REFRESH


class NotFound(InvalidInput):
    """There is nothing at that address."""

    code = "NOT_FOUND"
    status = 404


class NotOffered(NotFound):
    """The address exists, but not with that method."""

    code = "METHOD_NOT_ALLOWED"
    status = 405


class ClockDrift(LakeSyncError):
    """A stamp lies too far ahead of the observer's clock; correct the clock and stamp again."""

    code = "CLOCK_DRIFT"
    status = 409
    retry = Retry.AFTER_REFRESH


class AuthFailed(LakeSyncError):
    """There is no valid token; get a fresh one."""

    code = "AUTH_ERROR"
    status = 401
    retry = Retry.AFTER_REFRESH


class Forbidden(LakeSyncError):
    """The token is valid but not for this gateway, role or client id."""

    code = "FORBIDDEN"
    status = 403


class ColumnOmitted(Forbidden):
    """The sync rules leave a column out of what this client is sent, and it may not write it."""

    code = "COLUMN_OMITTED"


class ClientTaken(LakeSyncError):
    """The client id belongs to another user; use one of your own, or that user's token."""

    code = "CLIENT_TAKEN"
    status = 403


class Revoked(LakeSyncError):
    """The user or the client is revoked; an administrator of the gateway can restore it."""

    code = "REVOKED"
    status = 403


class GatewayDeleted(LakeSyncError):
    """The gateway was deleted for good; what is unsent stays in the outbox: use another gateway."""

    code = "GATEWAY_DELETED"
    status = 410
    ANSWER: ClassVar[str] = (
        "this gateway was deleted for good; keep what is unsent, and use another gateway"
    )


class AnotherGateway(LakeSyncError):
    """The client's file belongs to another gateway; go back to that one, or rebind the client."""

    code = "ANOTHER_GATEWAY"
    status = 409
    ANSWER: ClassVar[str] = (
        "this is not the gateway that this client has synced with: the address leads to another "
        "one, or it was set up anew; nothing was read or written: use the client's own gateway, "
        "or move it on purpose with client.rebind() or lakesync client move"
    )


class Conflict(LakeSyncError):
    """The thing changed since it was read; read it again and repeat."""

    code = "CONFLICT"
    status = 409
    retry = Retry.AFTER_REFRESH


class CursorExpired(LakeSyncError):
    """The log no longer reaches back to this cursor; fetch a checkpoint and keep the outbox."""

    code = "CURSOR_EXPIRED"
    status = 410
    retry = Retry.AFTER_REFRESH


class Unavailable(LakeSyncError):
    """Not now; the same request may succeed in a moment, and nothing was half done."""

    code = "UNAVAILABLE"
    status = 503
    retry = Retry.LATER
    public_message = (
        "what the gateway stores its data in is busy or away; the same request may succeed in a "
        "moment"
    )


class SourceUnavailable(Unavailable):
    """The database that is pulled from is down, slow or locked; pull from the gateway meanwhile."""

    code = "SOURCE_UNAVAILABLE"
    public_message = (
        "the source cannot be read now; the same request may succeed later, and what the gateway "
        "itself holds is served as ever"
    )
    wait_s = 30


class Contention(Unavailable):
    """Other writers won every race until the deadline; nothing was written."""

    code = "CONTENTION"
    public_message = ""


class Backpressure(Unavailable):
    """Too much, or too old, data waits to be flushed; push again later."""

    code = "BACKPRESSURE_ERROR"
    public_message = ""
    wait_s = 15  # flushing takes longer than a lost race


class RateLimited(Unavailable):
    """Too many requests; slow down."""

    code = "RATE_LIMITED"
    public_message = ""
    status = 429


class Unreachable(Unavailable):
    """The other side could not be reached, or its answer was lost; it is safe to repeat."""

    code = "UNREACHABLE"


class NotTheGateway(Unreachable):
    """Something else than the gateway answered: a login page, a proxy, a wrong address."""

    code = "NOT_THE_GATEWAY"
    http_status: int = 0
    """The status of that answer; 0 if it was no answer of HTTP."""


class UpgradeRequired(Unavailable):
    """A release that is older than the data was asked; deploy the later one again."""

    code = "UPGRADE_REQUIRED"
    public_message = (
        "this part of the gateway is older than its data; try again in a moment, and tell the "
        "operator if it lasts"
    )
    wait_s = 15  # a gradual deployment answers some requests by either release


class TransactionOpen(Unavailable):
    """A local transaction is open on this thread; edit through it, or again when it has ended."""

    code = "TRANSACTION_OPEN"


class ActionRunning(Unavailable):
    """The same action is just being run; ask again in a moment for what became of it."""

    code = "ACTION_RUNNING"
    public_message = ""
    wait_s = 2


class NotYetUploaded(Unavailable):
    """A row refers to an attachment whose bytes its client has not uploaded; ask again later."""

    code = "NOT_YET_UPLOADED"
    public_message = ""
    status = 404
    wait_s = 30  # the other client may be offline for much longer


class DamagedOnTheWay(Unavailable):
    """The bytes that arrived are not those that were asked for, and were thrown away; try again."""

    code = "DAMAGED_ON_THE_WAY"


class FileCorrupt(LakeSyncError):
    """A client's file is damaged; `lakesync.client.salvage` saves its outbox and begins anew."""

    code = "CORRUPT"
    status = 500


class WrongKey(LakeSyncError):
    """This key does not open a client's encrypted file; open it with the one it was made with."""

    code = "WRONG_KEY"
    status = 500


class AdapterFailed(LakeSyncError):
    """A store, source or destination refused or failed; the answer carries no detail."""

    code = "ADAPTER_ERROR"
    status = 502
    retry = Retry.LATER
    public_message = (
        "a store or queue behind the gateway failed; try again in a moment, and report the request "
        "id to the operator if it lasts"
    )


class AdapterUnreachable(AdapterFailed):
    """A destination or source could not be connected to; nothing happened there."""

    code = "ADAPTER_UNREACHABLE"


class AdapterTimedOut(AdapterFailed):
    """A destination or source was too slow, or locked; what was begun is undone."""

    code = "ADAPTER_TIMED_OUT"


class AdapterQuotaExceeded(AdapterFailed):
    """A destination or source accepts no more now: its quota, rate limit or space is used up."""

    code = "ADAPTER_QUOTA"
    wait_s = 60  # quotas are counted by minutes, or by days


class OutcomeUnknown(AdapterFailed):
    """The connection was lost while the other side committed; repeating the same is safe."""

    code = "ADAPTER_OUTCOME_UNKNOWN"


class AdapterRefused(AdapterFailed):
    """The other side allows it not: credentials, permissions, a missing database, read-only."""

    code = "ADAPTER_REFUSED"
    retry = Retry.NEVER


class ConstraintViolated(AdapterFailed):
    """The other side's constraints refuse the rows; change its tables or the rows."""

    code = "ADAPTER_CONSTRAINT"
    retry = Retry.NEVER


class ActionFailed(LakeSyncError):
    """The other side said no to an action, for good; correct what it says, and run another."""

    code = "ACTION_EXECUTION_ERROR"
    status = 422


class ActionOutcomeUnknown(ActionFailed):
    """An action was begun, and nobody can tell whether it was done; look at the other side."""

    code = "UNKNOWN_OUTCOME"
    status = 502


class FlushFailed(LakeSyncError):
    """A flush stopped before its watermark moved; it is safe to repeat."""

    code = "FLUSH_ERROR"
    status = 503
    retry = Retry.LATER


class InternalError(LakeSyncError):
    """A bug. It is logged and alarmed under the request id; the answer carries no detail."""

    code = "INTERNAL_ERROR"
    status = 500
    public_message = "an internal error; report the request id to the operator"


def _encodable(text: str) -> str:
    """Escape halves of surrogate pairs, which input may hold and no answer can carry."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def _tree(root: type[LakeSyncError]) -> list[type[LakeSyncError]]:
    return [root, *(leaf for child in root.__subclasses__() for leaf in _tree(child))]


BY_CODE: dict[str, type[LakeSyncError]] = {
    error.code: error for error in _tree(LakeSyncError) if hasattr(error, "code")
}
"""Every error by its code; what a client uses to turn an answer back into an error."""
