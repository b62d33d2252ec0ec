"""The messages between clients and the gateway, independent of any encoding.

They are pushes of deltas, pulls of pages, and actions: requests of a client for work in an outside
system, and their outcomes.

A pull may ask for a snapshot, whose tables are read in the order that its token says. A client
begins one by ``begin``, or by ``begin:todos,notes`` to have these tables first. The token of each
page (its words) repeats the order, and names the next table. So the order stays the same until the
snapshot ends, whatever the app asks for meanwhile, and the words show what was read.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from lakesync.core.clock import STAMP_MAX
from lakesync.core.delta import CLIENT_ID_BYTES_MAX, canonical, check_client_id
from lakesync.core.names import check_table_name, folded
from lakesync.errors import ActionInvalid, InvalidInput, LakeSyncError, Retry, ValidationFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from lakesync.core.clock import Stamp
    from lakesync.core.delta import Delta
    from lakesync.core.rules import SyncRules

# --- pushes and pulls -----------------------------------------------------------------------------


PAGE_BYTES_MAX: Final = 2_000_000
"""Stored bytes of the deltas of one page, unless a single commit or row is larger. It bounds the
memory of functions and clients, and is below the limit of Lambda's responses."""
SUB_PROTOCOL: Final = "lakesync.v1"
"""The sub-protocol that both sides of a WebSocket name: frames of protobuf."""
JSON_SUB_PROTOCOL: Final = "lakesync.v1.json"
"""The same with frames of JSON."""
BEARER: Final = "bearer."
"""The prefix of the token among the sub-protocols that a client offers."""
NO_CLAIMS: Final[Mapping[str, Any]] = MappingProxyType({})
SNAPSHOT: Final = "begin"
"""The request for all rows as they are, for a cursor that the log no longer reaches back to."""


def log_behind(snapshot: str) -> Stamp:
    """Get the stamp behind which the log continues after a snapshot, from `PullPage.snapshot`."""
    return int(snapshot.partition("|")[0], 16)


@dataclass(frozen=True, slots=True)
class RefusedDelta:
    """A delta that could not be decoded; its neighbours could."""

    index: int
    """Its place in the push."""
    error: LakeSyncError
    delta_id: str = ""
    """As the client named it; empty if it did not."""
    row: tuple[str, str] | None = None
    """The table and id of its row, if those could be read."""


@dataclass(frozen=True, slots=True)
class Push:
    """A client's deltas, as received."""

    client_id: str
    deltas: tuple[tuple[int, Delta], ...]
    """Each readable delta with its place in the push."""
    last_seen_hlc: Stamp = 0
    atomic: bool = False
    """All or nothing, in one commit: our clients request this for each local transaction."""
    unreadable: tuple[RefusedDelta, ...] = ()
    epoch: str | None = None
    """The gateway's epoch, as the client knows it; a push that names another is refused. None if
    the client knows none."""
    claims: Mapping[str, Any] = field(default_factory=lambda: NO_CLAIMS)
    """The claims of the client's token, by which sync rules decide on its writes."""
    own_cursor: bool = True
    """Only pages move the client's cursor."""
    typed: bool = True
    """Values must fit the types of their columns; if False, values that do not are accepted
    unchanged."""
    revives: bool = False
    """An update brings back what is newer than its row's delete, also where rules filter the table.
    Never read from the wire."""
    trusted: bool = False
    """Sync rules do not apply to its writes: a connector's, which an administrator set up. Never
    read from the wire."""


class OutcomeKind(Enum):
    """The outcome of a delta that was not simply accepted."""

    DUPLICATE = "duplicate"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class DeltaOutcome:
    """The outcome of one delta that was not simply accepted."""

    index: int
    delta_id: str
    kind: OutcomeKind
    error: LakeSyncError | None = None
    """Why it was refused; None for a duplicate."""


@dataclass(frozen=True, slots=True)
class PushReceipt:
    """The answer to a push. The deltas that it counts as accepted are durable."""

    server_hlc: Stamp
    """The gateway's latest commit; a read cursor for followers only."""
    accepted: int
    """Deltas whose effect is durable, duplicates included."""
    outcomes: tuple[DeltaOutcome, ...] = ()
    server_time_ms: int = 0
    """The gateway's wall clock, with which a client corrects its own."""
    epoch: str = ""
    """The gateway's epoch, which the client names from now on; empty before its first commit."""


PLACES_CHARS_MAX: Final = 6_000
"""Length of `Pull.snapshot`: of a source, the progress of each table, with a row id in one."""
QUARANTINED_MAX: Final = 1_000_000_000
"""Edits that a client may report to be in quarantine."""


@dataclass(frozen=True, slots=True)
class Pull:
    """A client's request for what became visible after its cursor."""

    client_id: str
    since: Stamp = 0
    deltas_max: int = 100
    epoch: str = ""
    """The gateway's epoch, as the client knows it; another gateway refuses the pull. Empty if the
    client knows none."""
    snapshot: str = ""
    """`SNAPSHOT` to begin with the rows as they are, optionally with some tables first
    (`lakesync.core.messages`); or `PullPage.snapshot` to continue. Either way ``since`` is
    ignored."""
    claims: Mapping[str, Any] = field(default_factory=lambda: NO_CLAIMS)
    """The claims of the client's token, by which sync rules decide what it sees."""
    removes: bool = False
    """The client knows removals; for others a row that they may no longer see is deleted."""
    scope: str = ""
    """The scope of the page that gave the cursor; empty if the client does not know it."""
    own_cursor: bool = True
    """The client merges by stamps, and only pages move its cursor."""
    at_least: Stamp = 0
    """The last page ends here or later: a receipt's stamp; `STAMP_MAX` for the newest commit."""
    source: str = ""
    """The declared destination to read instead of the gateway; only ``snapshot`` continues in it.
    """
    quarantined: int | None = None
    """How many refused edits of the client wait for a decision; None if it does not report this. It
    affects nothing, and is shown to administrators."""

    rules: SyncRules | None = None
    """Rules that are applied in place of those in force; never set by a client."""
    until: Stamp = STAMP_MAX
    """The log is read up to here at the most; never set by a client."""
    bytes_max: int = PAGE_BYTES_MAX
    """Bytes of deltas that the answer can carry, in their stored form."""


@dataclass(frozen=True, slots=True)
class Resync:
    """Tables that are read again from here on, because other rules or claims apply.

    A row of them that a client holds, and that no page of the re-sync brings, no longer exists for
    it.
    """

    tables: tuple[str, ...] = ()
    named: tuple[str, ...] | None = None
    """If not None, all other tables are read again too, except these."""
    tombstone_horizons: Mapping[str, Stamp] = field(default_factory=lambda: MappingProxyType({}))
    """By table, the stamp up to which the gateway may have forgotten deletions. A row that a client
    holds from before, and that no page brings, may have been deleted."""

    omitted: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: MappingProxyType({}))
    """By named table, the columns (in lower case) that are left out of its rows from here on, and
    of which the client keeps nothing. The empty name stands for all other tables."""

    def omitted_of(self, table: str) -> tuple[str, ...]:
        """Return the columns that are left out of a table that is read again."""
        return self.omitted.get(table if table in self.tables else "", ())

    def concerns(self, table: str) -> bool:
        """Return whether a table is read again."""
        return table in self.tables or (self.named is not None and table not in self.named)


class Progress(NamedTuple):
    """How much of a checkpoint was read: rows of all tables, hidden and deleted ones included.

    A reader from which rules keep anything is sent it in percent: it could count hidden rows.
    """

    read: int
    """The rows before the place where reading continues."""
    total: int

    @property
    def in_percent(self) -> Progress:
        """The same share, of 100."""
        return Progress(100 * self.read // self.total, 100) if self.total else self


@dataclass(frozen=True, slots=True)
class PullPage:
    """Whole commits in order, and the cursor behind them."""

    records: tuple[bytes, ...]
    """Wire-ready runs of deltas, one for each commit and shard; see `lakesync.wire.records`."""
    count: int
    """Deltas in ``records``."""
    cursor: Stamp
    """The cursor of the next pull. A commit stamp, never comparable with a delta's stamp."""
    has_more: bool
    epoch: str = ""
    snapshot: str = ""
    """Not empty in a page of rows as they are: the token with which to ask for the next page. The
    log follows after the last one. The cursor of such a page only carries the gateway's time."""
    scope: str = ""
    """The rules and claims that decide what the client holds after this page; see
    `lakesync.core.visibility`."""
    resync: Resync | None = None
    """Tables that are read again, beginning with this page; None if no re-sync begins here."""
    schema_version: int = 0
    """`Schemas.version` of the gateway; a client that has another version asks for the schemas
    again."""
    behind_ms: int = 0
    """How far the newest commit is ahead of where pages can end now."""
    first: Stamp = 0
    """The first commit in the page; 0 if the page is empty."""
    previous: Stamp | None = None
    """Of a broadcast: its reader sees nothing between this stamp and ``first``. A reader whose
    cursor is at or after ``previous`` and before ``first`` may apply it. None in a page that was
    asked for."""

    progress: Progress | None = None
    """Of rows as they are: how many were read; None if their number is not known."""

    @property
    def is_poke(self) -> bool:
        """Return whether a broadcast only says that there is something to pull."""
        return self.previous is None

    def follows(self, cursor: Stamp) -> bool:
        """Return whether a broadcast continues exactly at its reader's cursor."""
        return self.previous is not None and self.previous <= cursor < self.first


# --- the order of a snapshot ----------------------------------------------------------------------


FIRST_TABLES_MAX: Final = 32
"""Tables that one client may have first; the words of each page name them."""
ALL_TABLES: Final = "all"
"""The field of the words of a snapshot that reads all tables."""
WORDS_FIELDS: Final = 5
"""Fields of a page's words that say what was read; only the gateway reads those that follow."""
Place: TypeAlias = "tuple[int, str]"


def checked_first(tables: Iterable[str], field: str = "first_tables") -> tuple[str, ...]:
    """Return the tables to read first, without repeats, in their order.

    Raises:
        ValidationFailed: one is no table's name, or they are too many.
    """
    given = [tables] if isinstance(tables, str) else list(tables)
    first = tuple({folded(check_table_name(name, field)): name for name in given}.values())
    if len(first) > FIRST_TABLES_MAX:
        raise ValidationFailed(
            f"{len(first)} tables cannot all come first: name {FIRST_TABLES_MAX} at the most",
            field=field,
        )
    return first


def begin_words(first: tuple[str, ...]) -> str:
    """Return the words that ask for all rows as they are, with some tables first."""
    return f"{SNAPSHOT}:{','.join(first)}" if first else SNAPSHOT


def begins(words: str) -> bool:
    """Return whether words begin a snapshot."""
    return words.partition(":")[0] == SNAPSHOT


def first_of(words: str) -> tuple[str, ...]:
    """Return the tables that are read first, from `begin_words` or the same with ``all`` for begin.

    Raises:
        ValidationFailed: they are no tables' names, or too many.
    """
    names = words.partition(":")[2]
    return checked_first(names.split(","), "snapshot") if names else ()


def has_any_of(first: tuple[str, ...], tables: Iterable[str]) -> bool:
    """Return whether any of the first tables is among some tables, in any spelling."""
    return not {*map(folded, first)}.isdisjoint(map(folded, tables))


def reads_all_tables(words: str) -> bool:
    """Return whether a page's words belong to a snapshot of all tables, not only of some."""
    fields = words.split("|", 2)
    return len(fields) > 1 and fields[1].partition(":")[0] == ALL_TABLES


def place_by(first: tuple[str, ...]) -> Callable[[str], Place]:
    """Return the sort key of tables: those to be read first, then the others by name."""
    places = {folded(name): place for place, name in enumerate(first)}
    return lambda table: (places.get(folded(table), len(places)), table)


def tables_read(words: str, known: Iterable[str]) -> frozenset[str]:
    """Return the tables, of those known and those to be read first, that are read to the end.

    Words of an unknown form, which another release may write, show no table as read.

    Args:
        words: the last page's words, which say where the snapshot continues.
        known: other tables.
    """
    fields = words.split("|", 5)
    if len(fields) < WORDS_FIELDS:
        return frozenset()
    _, reads, _, _, table = fields[:WORDS_FIELDS]
    if reads.partition(":")[0] != ALL_TABLES:
        return frozenset(known)
    try:
        first = first_of(reads)
    except ValidationFailed:
        return frozenset()
    place_of = place_by(first)
    tables = {folded(name): name for name in (*first, *known)}.values()
    return frozenset(name for name in tables if not table or place_of(name) < place_of(table))


# --- actions --------------------------------------------------------------------------------------


ACTIONS_MAX: Final = 25
"""Actions in one request. They run one after another, and API Gateway waits at most 30 s."""
ACTION_ID_BYTES_MAX: Final = 128
"""Length of an action's id, and of its idempotency key."""
PARAMS_BYTES_MAX: Final = 65_536
"""Parameters of one action, as JSON. EventBridge and SQS accept 256 KB, fields beside them
included."""


@dataclass(frozen=True, slots=True)
class Action:
    """An action that a client requests. Made by `checked_action`, and valid."""

    action_id: str
    client_id: str
    hlc: Stamp
    connector: str
    """The registered name of the action handler that runs it; the field has existing clients' word.
    """
    action_type: str
    params: Mapping[str, Any]
    idempotency_key: str = ""
    """Actions of one client with the same key are one action; empty for no key."""

    def digest(self) -> str:
        """Return a digest of the request: one id may not be used for two different requests."""
        asked = {"connector": self.connector, "type": self.action_type, "params": self.params}
        return hashlib.sha256(canonical(asked)).hexdigest()


@dataclass(frozen=True, slots=True)
class ActionRefused:
    """A malformed action. It is refused alone; its neighbours are run."""

    action_id: str
    error: LakeSyncError


@dataclass(frozen=True, slots=True)
class ActionPush:
    """A client's actions, in the order in which they are run."""

    client_id: str
    actions: tuple[Action | ActionRefused, ...]
    epoch: str = ""
    """The epoch of the gateway that they are meant for; empty if the client knows none."""


@dataclass(frozen=True, slots=True)
class ActionOutcome:
    """The outcome of one action: ``data`` if it was done, else ``code`` and its sentence."""

    action_id: str
    data: Mapping[str, Any] = field(default_factory=dict)
    server_hlc: Stamp = 0
    code: str = ""
    message: str = ""
    retryable: bool = False
    """The same action may be sent again unchanged: nothing was done, or the outcome is known later.
    """

    @property
    def is_done(self) -> bool:
        """Return whether the action was done."""
        return not self.code


@dataclass(frozen=True, slots=True)
class ActionAnswers:
    """The outcomes of a client's actions, one for each."""

    results: tuple[ActionOutcome, ...]
    server_hlc: Stamp


@dataclass(frozen=True, slots=True)
class ActionDescription:
    """An action that a caller may run."""

    action_type: str
    description: str
    params_schema: Mapping[str, Any]


def refusal(action_id: str, error: LakeSyncError) -> ActionOutcome:
    """Return the outcome for an error, without what the error says of the systems behind it."""
    retryable = error.retry is Retry.LATER
    message = error.public_message or error.message
    return ActionOutcome(action_id, code=error.code, message=message, retryable=retryable)


def checked_action(fields: Action) -> Action:
    """Return an action if it is valid.

    Raises:
        ActionInvalid: a name, an id or the parameters are malformed or too large.
    """
    try:
        check_client_id(fields.client_id)
    except InvalidInput as error:
        raise ActionInvalid(error.message, field="clientId") from None
    _text(fields.action_id, "actionId", ACTION_ID_BYTES_MAX)
    _text(fields.connector, "connector", CLIENT_ID_BYTES_MAX)
    _text(fields.action_type, "actionType", CLIENT_ID_BYTES_MAX)
    if fields.idempotency_key:
        _text(fields.idempotency_key, "idempotencyKey", ACTION_ID_BYTES_MAX)
    if not isinstance(fields.params, dict):
        raise ActionInvalid("params must be a JSON object", field="params")
    try:
        size = len(canonical(fields.params))
    except InvalidInput as error:
        raise ActionInvalid(f"params: {error.message}", field="params") from None
    if size > PARAMS_BYTES_MAX:
        raise ActionInvalid(
            f"params take {size} bytes, and {PARAMS_BYTES_MAX} are allowed: store what is large "
            "elsewhere, and send where it is",
            field="params",
        )
    return fields


def _text(value: object, name: str, bytes_max: int) -> None:
    try:
        size = len(value.encode()) if isinstance(value, str) else 0
    except UnicodeEncodeError:
        size = 0
    if not 0 < size <= bytes_max:
        raise ActionInvalid(f"{name} must be text of 1 to {bytes_max} bytes", field=name)
