"""All ports: what the engine needs of the world, as Protocols, and the records they exchange.

Implementations keep the promises written here; ``tests/contracts`` proves it for each of them.
Ports raise: `lakesync.errors` for what can happen in operation, `HeadMoved` for a lost race. The
public operations above them turn that into a ``Result``.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from types import MappingProxyType
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    NamedTuple,
    Protocol,
    TypeAlias,
    TypeVar,
    runtime_checkable,
)

from lakesync.core.layout import ONE_LANE, Lanes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from lakesync.core.append import AppendMark
    from lakesync.core.clock import Stamp
    from lakesync.core.config import GatewayConfig
    from lakesync.core.destinations import Destinations
    from lakesync.core.messages import Pull, PullPage, Push, PushReceipt
    from lakesync.core.schema import Schemas

RowKey: TypeAlias = tuple[str, str]
"""``(table, row_id)``."""

MarkKey: TypeAlias = tuple[str, str]
"""``(shard, client_id)``."""

T = TypeVar("T")


class WallClock(Protocol):
    """The wall clock."""

    def __call__(self) -> int:
        """Give the milliseconds since 1970."""
        ...


class Chance(Protocol):
    """Randomness, passed in: it spreads retries and names commits."""

    def jitter(self) -> float:
        """Give a number in [0, 1)."""
        ...

    def token(self) -> str:
        """Give a name that is never given again, at most 36 characters."""
        ...


# --- the buffer -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One commit's effective deltas in one lane. Immutable, so it may be cached for ever."""

    stamp: Stamp
    records: bytes
    """A wire-ready run of deltas; see `lakesync.wire.records`."""
    count: int
    tables: frozenset[str]
    logged_bytes: int
    """Bytes of all entries of this lane, up to and with this one: a running total, so that how
    much waits to be flushed can be set, not counted, and a repeated flush changes nothing."""
    previous: Stamp
    """The lane's entry before this one, 0 for the first: the log is a chain, in which a reader
    notices an entry that is not visible yet."""
    rule_rows: bytes = b""
    """What sync rules look at, of each delta's row; see `lakesync.wire.rule_rows`. Empty where
    there were no rules."""


@dataclass(frozen=True, slots=True)
class Head:
    """A lane's head: its last commit, and what every commit or page must know of the lane."""

    commit: Stamp = 0
    config_version: int = 0
    epoch: str = ""
    """Changes when the buffer is restored from a backup (`epoch_at`); cursors of another epoch are
    void."""
    logged_bytes: int = 0
    """Bytes of all entries ever logged in this lane."""
    flushed_bytes: int = 0
    """Of those, the bytes that the flush watermark has passed."""
    oldest_unflushed: Stamp = 0
    """The first commit that may wait to be flushed; 0 if none does."""
    last_logged: Stamp = 0
    """The lane's last log entry. ``commit`` stands above it once a read barrier raised it."""
    recent: tuple[LogEntry, ...] = ()
    """The last log entries, while they are small: they lie in the head, and move into the log
    together, as an item costs the same for one as for several."""
    is_closed: bool = False
    """No commit is made to it before it is opened again."""

    trimmed: Stamp = 0
    """Of the main lane's head alone: entries of any lane up to here may be gone; cursors below are
    void."""
    lanes: Lanes = ONE_LANE
    """Of the main lane's head alone: which lanes are open."""

    @property
    def stored_until(self) -> Stamp:
        """The last entry that does not lie in the head."""
        return self.recent[0].previous if self.recent else self.last_logged


NO_HEAD = Head()
"""The head of a lane that was never written."""


@dataclass(frozen=True, slots=True)
class LogSlice:
    """Entries of one lane, and how far they are all there is."""

    entries: tuple[LogEntry, ...]
    until: Stamp
    """There is no other entry up to here; less than what was asked for if the read ended early."""


def epoch_at(began: Stamp) -> str:
    """Give the name of the epoch that began at a stamp; as text, a later one is the greater."""
    return f"{began:016x}"


class StoredRow(NamedTuple):
    """A row state as the buffer holds it."""

    state: bytes
    """Encoded; see `lakesync.wire.row_state`."""
    commit: Stamp
    """The commit that wrote it."""


@dataclass(frozen=True, slots=True)
class RowSlice:
    """Some rows of one table, and where the next ones begin."""

    rows: tuple[tuple[str, StoredRow], ...]
    """Row ids with their rows, in the buffer's own order."""
    place: str
    """Where to go on; empty once there are no more."""


ROW_PARTS: Final = 16
"""Parts over which the rows of a table are spread, by a hash of their ids; for ever the same."""


class StoredMark(NamedTuple):
    """An append mark as the buffer holds it."""

    mark: AppendMark
    commit: Stamp
    """The commit that wrote it."""


class RowPut(NamedTuple):
    """A row state as it shall be."""

    state: bytes
    seen: Stamp
    """The commit that wrote the state which this one replaces; 0 if there was none."""


class MarkPut(NamedTuple):
    """An append mark as it shall be."""

    mark: AppendMark
    seen: Stamp
    """The commit that wrote the mark which this one replaces; 0 if there was none."""


@dataclass(frozen=True, slots=True)
class LaneCommit:
    """One lane's part of a commit."""

    seen: Head | None
    """The head that was read; the commit happens only if it still stands. None: no head yet."""
    entry: LogEntry
    chunk: tuple[LogEntry, ...] = ()
    """What moves into the log, as one item: the entries that lay in the head, and the new one as
    the last. Empty if the new entry joins those in the head."""


@dataclass(frozen=True, slots=True)
class Commit:
    """Everything that becomes visible at one stamp, in one transaction or not at all."""

    gateway: str
    stamp: Stamp
    config_version: int
    lanes: Mapping[str, LaneCommit]
    rows: Mapping[RowKey, RowPut]
    """The merged row states."""
    token: str
    """The same for each try of the same commit, at most 36 characters: a repeated try of a commit
    that happened, whose answer was lost, succeeds and changes nothing."""
    marks: Mapping[MarkKey, MarkPut] = field(default_factory=lambda: MappingProxyType({}))
    """The append marks."""
    epoch: str = ""
    """The gateway's."""


def head_after(before: Head, commit: Commit, lane_commit: LaneCommit) -> Head:
    """Give a lane's head as a commit leaves it."""
    entry = lane_commit.entry
    return replace(
        before,
        commit=commit.stamp,
        config_version=commit.config_version,
        epoch=commit.epoch,
        logged_bytes=entry.logged_bytes,
        oldest_unflushed=before.oldest_unflushed or commit.stamp,
        last_logged=entry.stamp,
        recent=() if lane_commit.chunk else (*before.recent, entry),
        is_closed=False,
    )


class HeadMoved(Exception):
    """A head was not as it had been seen; nothing was written."""

    def __init__(self, heads: Mapping[str, Head]) -> None:
        super().__init__(f"moved: {', '.join(heads)}")
        self.heads = heads
        """The heads that stood in the way, as they are now."""


class ConfigMoved(Exception):
    """Another configuration is in force than the one that was changed; nothing was written."""


class HeadBusy(Exception):
    """Another transaction was just writing to a head; nothing was written."""


class StaleRead(Exception):
    """The heads stand, but a row or mark is not as it was seen; nothing was written."""

    def __init__(self, message: str, rows: Mapping[RowKey, StoredRow | None] | None = None) -> None:
        super().__init__(message)
        self.rows = rows or {}
        """The rows that are not as they were seen, as they are now."""


class GatewaySlice(NamedTuple):
    """Some gateways, and where the next ones begin. One may be in several slices."""

    gateways: tuple[str, ...]
    place: str
    """Where to go on; empty once there are no more."""
    oldest: Stamp = 0
    """The oldest commit that waits behind the heads of the slice; 0 if there are none."""


@dataclass(frozen=True, slots=True)
class FlushState:
    """How far a gateway's log has been flushed."""

    watermark: Stamp = 0
    """Everything up to here is announced."""
    until: Stamp = 0
    """The end of the range in work, recorded before its first object is written; 0 if none is.
    Whoever finds it repeats exactly that range, so a crash repeats the same objects."""


class CommitLog(Protocol):
    """Heads, commits, and the log of a gateway."""

    def heads(self, gateway: str, since: Stamp = 0, *, at_once: bool = False) -> dict[str, Head]:
        """Give the heads that exist of open lanes, and of those with an entry above ``since``.

        The main lane's is the first, and was read before the others: so each of them is as it was
        when the list of open lanes was read, or later.

        Args:
            gateway: whose.
            since: the stamp.
            at_once: the list may be read beside the heads: that of an open lane is then as it was
                at any moment of the call, or missing. For readers; who closes lanes needs the
                order.
        """
        ...

    def lane_heads(self, gateway: str, lanes: Sequence[str]) -> dict[str, Head]:
        """Give the heads that exist of some lanes."""
        ...

    def marks(self, gateway: str, wanted: Iterable[MarkKey]) -> dict[MarkKey, StoredMark]:
        """Give the append marks that exist."""
        ...

    def read_marks_serializable(
        self, gateway: str, wanted: Iterable[MarkKey]
    ) -> dict[MarkKey, StoredMark]:
        """Give the append marks that exist, none as it was before a commit that happened.

        For what no condition will prove: the marks of shards that a commit does not write to.

        Raises:
            Contention: a commit that writes one of them is just happening; try again in a moment.
        """
        ...

    def commit(self, commit: Commit) -> None:
        """Write everything, or nothing.

        Raises:
            HeadMoved: a head is not as seen.
            HeadBusy: a head is just being written to.
            StaleRead: the heads are as seen, but a row or mark is not.
            lakesync.errors.Unavailable: refused for now; or the answer was lost, in which case the
                same commit (same token) may be tried again.
        """
        ...

    def raise_head(self, gateway: str, lane: str, seen: Head | None, to: Stamp, main: Head) -> bool:
        """Move a lane's head up, so that no commit can appear at or below ``to``.

        Args:
            gateway: whose.
            lane: the lane.
            seen: its head as it was read; None if there is none: then it is made, open.
            to: the stamp.
            main: the main lane's head, which a new one takes the configuration and epoch from.

        Returns:
            False if the head was not as seen, or a commit is just moving it: read it again.
        """
        ...

    def change_lanes(self, gateway: str, seen: Head | None, lanes: Lanes, to: Stamp = 0) -> bool:
        """Change which lanes are open, and raise the main lane's head to ``to``.

        Args:
            gateway: whose.
            seen: the main lane's head, as it was read; None if there is none.
            lanes: the lanes as they shall be.
            to: above the main lane's head; 0 to leave that where it is.

        Returns:
            False if the lanes were not as seen, or the head stands at ``to`` or above.
        """
        ...

    def close_lane(self, gateway: str, lane: str, seen: Head | None, to: Stamp) -> bool:
        """Close a lane, or move the head of one that is closed; it is made if there is none.

        Args:
            gateway: whose.
            lane: the lane.
            seen: its head, as it was read.
            to: above that head, which moves there, so that no commit that is on its way happens.

        Returns:
            False if the head was not as seen, or a commit is just moving it.
        """
        ...

    def entries(
        self, gateway: str, lane: str, after: Stamp, until: Stamp, count_max: int
    ) -> LogSlice:
        """Give entries in ``(after, until]`` in order, as far as they do not lie in the head.

        Ends early once they hold ``count_max`` deltas or about 1 MB, and says so; is never empty
        while the range holds an entry. An entry of a commit that is just happening may be missing:
        the chain of ``previous`` shows it (`lakesync.log.read_barrier.read`).

        Args:
            gateway: whose.
            lane: the lane.
            after: the stamp behind which to begin.
            until: a `Head.stored_until`.
            count_max: deltas at the most, but for those that lie in one item with others.
        """
        ...

    def pause(self, tries: int) -> None:
        """Wait a random while before something is tried again, longer with each try."""
        ...

    def in_parallel(self, calls: Sequence[Callable[[], T]]) -> list[T]:
        """Make calls of this port that do not depend on each other, side by side if it can."""
        ...


class Rows(Protocol):
    """Row states."""

    def rows(self, gateway: str, wanted: Iterable[RowKey]) -> dict[RowKey, StoredRow]:
        """Give the states of the rows that exist."""
        ...

    def rows_within(
        self, gateway: str, wanted: Iterable[RowKey], bytes_max: int
    ) -> tuple[dict[RowKey, StoredRow], list[RowKey]]:
        """Give the states of rows in their order until they hold so many bytes; and what is left.

        At least one row is read, however large it is.
        """
        ...

    def scan_rows(self, gateway: str, table: str, place: str, count_max: int) -> RowSlice:
        """Give a table's rows from a place on: every row that is there all the while, once.

        Args:
            gateway: whose.
            table: the table.
            place: `RowSlice.place` of the slice before; empty for the first.
            count_max: rows at the most. It may give fewer: about 1 MB ends it too.
        """
        ...

    def scan_part(
        self, gateway: str, table: str, part: int, after: str, count_max: int
    ) -> RowSlice:
        """Give rows of one of a table's `ROW_PARTS` parts, in the order of their ids.

        Args:
            gateway: whose.
            table: the table.
            part: the part's number, from 0.
            after: the row id behind which to begin; empty for the first. `RowSlice.place` of what
                is given is the next.
            count_max: rows at the most. It may give fewer: about 1 MB ends it too.
        """
        ...

    def forget_row(self, gateway: str, table: str, row_id: str, seen: Stamp) -> bool:
        """Remove a row's state, if the commit that wrote it is still the one that was seen.

        Returns:
            False if it is not, or the row is gone already; nothing was removed.
        """
        ...


class Configurations(Protocol):
    """What is declared of gateways."""

    def config(self, gateway: str) -> GatewayConfig:
        """Give the configuration in force; version 0 if nothing was ever declared."""
        ...

    def save_config(
        self, gateway: str, config: GatewayConfig, seen: Head | None, lanes: Lanes, to: Stamp
    ) -> None:
        """Put a configuration in force, and its version into the main lane's head, at one moment.

        Args:
            gateway: whose.
            config: the configuration.
            seen: the main lane's head, as it was read; None if there is none.
            lanes: the lanes as they shall be: all but the main lane closed.
            to: where the main lane's head moves, above where it stands.

        Raises:
            HeadMoved: the lanes are not as seen, or the head stands at ``to`` or above.
            ConfigMoved: the version in force is not ``config.version - 1``.
            lakesync.errors.Conflict: it has outgrown one item.
        """
        ...

    def gateways(self) -> list[str]:
        """Give every gateway that was ever written to."""
        ...


class DestinationStore(Protocol):
    """What is declared of gateways' destinations."""

    def destinations(self, gateway: str) -> Destinations:
        """Give what is declared; version 0 if nothing ever was."""
        ...

    def save_destinations(self, gateway: str, destinations: Destinations) -> bool:
        """Put a document in force; False if the one before it is not, and nothing was written.

        Raises:
            lakesync.errors.Conflict: it has outgrown one item.
        """
        ...


@dataclass(frozen=True, slots=True)
class DeliveryState:
    """How it went when somebody last worked on a destination's table: for people to read."""

    mark: Stamp = 0
    """How far the table had come."""
    dead_letters: int = 0
    """Rows that the destination refused."""
    error: str = ""
    """Why it could not go on; empty if it could."""
    at_ms: int = 0


class DeliveryStates(Protocol):
    """How it goes with gateways' destinations. Nothing is decided by it."""

    def delivery_states(self, gateway: str, destination: str) -> dict[str, DeliveryState]:
        """Give what was noted of a destination, by table; under the empty name of all of it."""
        ...

    def save_delivery_state(
        self, gateway: str, destination: str, table: str, state: DeliveryState | None
    ) -> None:
        """Note how it went, or with None that there is nothing to tell any more."""
        ...


class FlushStates(Protocol):
    """How far gateways were flushed."""

    def flush_state(self, gateway: str) -> FlushState:
        """Give how far the gateway was flushed."""
        ...

    def save_flush_state(self, gateway: str, seen: FlushState, state: FlushState) -> bool:
        """Move the flush state on; False if it was not as seen, and nothing was written."""
        ...

    def flushed_tables(self, gateway: str, after: str = "") -> dict[str, Stamp]:
        """Give the tables that were ever flushed, by name, each with its last commit in a batch.

        A commit is here before the watermark passes it. Whoever compares the two reads the flush
        state first, so that none is missing below the watermark.

        Args:
            gateway: whose.
            after: only tables whose names come behind this one; empty for all.
        """
        ...

    def save_flushed_table(self, gateway: str, table: str, last: Stamp) -> None:
        """Set a table's last commit that was announced in a batch; never lowers it."""
        ...

    def note_flushed(self, gateway: str, lane: str, until: Stamp, logged_bytes: int) -> None:
        """Set how much of a lane is flushed: the running total of its last entry to ``until``.

        For backpressure, metrics and `unflushed` only. Never lowers what is noted; safe to repeat.
        """
        ...

    def unflushed(self, place: str, heads_max: int) -> GatewaySlice:
        """Give the gateways with a head that says that something waits to be flushed.

        Idle gateways cost nothing. The one read that may lag behind: a commit, or a flush, shows in
        it after a moment.

        Args:
            place: `GatewaySlice.place` of the slice before; empty for the first.
            heads_max: heads of one slice, at the most.
        """
        ...


class ClientStates(Protocol):
    """What is remembered of single clients, in a form that is its user's own."""

    def client_state(self, gateway: str, client_id: str) -> bytes | None:
        """Give what is remembered of a client; None if nothing is."""
        ...

    def save_client_state(
        self, gateway: str, client_id: str, seen: bytes | None, state: bytes
    ) -> bool:
        """Remember something of a client; False if it was not as seen, and nothing was written."""
        ...


class Upkeep(Protocol):
    """What is done to a gateway as a whole."""

    def all_heads(self, gateway: str) -> dict[str, Head]:
        """Give all heads that exist, whatever the main lane's says; for a restored buffer."""
        ...

    def raise_horizon(self, gateway: str, to: Stamp) -> None:
        """Void every cursor below ``to``; never lowers a horizon, makes no head. Safe to repeat.

        Raises:
            lakesync.errors.Contention: a commit is just moving the head; the horizon is not raised.
        """
        ...

    def drop_entries(self, gateway: str, lane: str, until: Stamp, entries_max: int) -> bool:
        """Delete what lies in the log at or below ``until``, oldest first.

        Safe to repeat, and to kill: what is left is always the end of the log.

        Returns:
            True if none is left; False after ``entries_max`` items.
        """
        ...

    def empty_head(self, gateway: str, lane: str, seen: Head) -> bool:
        """Remove the entries that lie in a lane's head, and move it up by one; False if it moved.

        Once it has moved, no commit can put those entries into the log that were seen in it.

        Args:
            gateway: whose.
            lane: the lane.
            seen: its head as it was read: all of its entries lie at or below the horizon.
        """
        ...

    def begin_epoch(
        self, gateway: str, seen: Head | None, lanes: Lanes, to: Stamp, config_version: int
    ) -> None:
        """Put an epoch that begins at ``to`` into the main lane's head, and raise it to there.

        Args:
            gateway: whose.
            seen: the main lane's head, as it was read; None if there is none.
            lanes: the lanes as they shall be: all but the main lane closed.
            to: above the main lane's head.
            config_version: that of the configuration in force.

        Raises:
            HeadMoved: the lanes are not as seen, or the head stands at ``to`` or above.
        """
        ...


class Buffer(
    CommitLog,
    Rows,
    Configurations,
    DestinationStore,
    DeliveryStates,
    FlushStates,
    ClientStates,
    Upkeep,
    Protocol,
):
    """The durable buffer of all gateways: all of the above. Whoever needs less asks for less.

    Every read is strongly consistent, item by item: it shows each commit that was answered before,
    but of one that is just happening it may show one item and not yet another. Any method may raise
    `lakesync.errors.Unavailable` (or a subclass) when the store throttles or cannot be reached; it
    is then safe to repeat.
    """


class GatewayItems(Protocol):
    """All that is stored of a gateway, but for objects: its buffer, its clients, its quota."""

    def count(self, gateway: str, tables: Iterable[str]) -> dict[str, int]:
        """Tell how much is stored of a gateway, by kind; 0 is exact, of many it gives some.

        What a deleted gateway leaves for ever does not count: see `remove`.

        Args:
            gateway: whose.
            tables: its tables.
        """
        ...

    def remove(self, gateway: str, tables: Iterable[str], has_time: Callable[[], bool]) -> bool:
        """Remove all that `count` counts, of a gateway whose configuration says it is deleted.

        What stays, so that nothing can be made of it anew: the configuration, the heads without
        entries, and the revocation of the gateway itself. Safe to repeat, and to kill.

        Args:
            gateway: whose.
            tables: its tables.
            has_time: asked before each few removals; False ends it there.

        Returns:
            True if nothing is left.
        """
        ...


# --- the lake -------------------------------------------------------------------------------------


class ObjectStore(Protocol):
    """Objects under keys: S3, or a dictionary in tests."""

    def put_object(self, key: str, body: bytes, content_type: str) -> None:
        """Store an object; storing the same again changes nothing."""
        ...

    def get_object(self, key: str) -> bytes:
        """Give an object's bytes.

        Raises:
            lakesync.errors.NotFound: there is none.
        """
        ...

    def get_range(self, key: str, start: int, size: int) -> bytes:
        """Give ``size`` bytes of an object from a place on, fewer if it ends before.

        Raises:
            lakesync.errors.NotFound: there is no such object, or it ends before the place.
        """
        ...

    def list_objects(self, prefix: str) -> list[str]:
        """Give the keys under a prefix, in order."""
        ...

    def delete_object(self, key: str) -> None:
        """Remove an object; removing it again changes nothing."""
        ...


class Queue(Protocol):
    """Messages to the next stage, delivered at least once."""

    def send(self, body: str) -> None:
        """Hand a message over; when this returns it is durable."""
        ...


class BatchEncoder(Protocol):
    """One table's deltas as the bytes of one object."""

    def encode(self, rows: Sequence[BatchRow], columns: Mapping[str, str]) -> bytes:
        """Give the object; the same rows give the same bytes.

        Args:
            rows: the deltas in commit order.
            columns: the name in the object of each column that occurs.
        """
        ...


@dataclass(frozen=True, slots=True)
class BatchRow:
    """One delta on its way to the lake."""

    commit: Stamp
    ordinal: int
    """Its place in the commit."""
    op: str
    row_id: str
    client_id: str
    hlc: Stamp
    delta_id: str
    columns: tuple[tuple[str, bytes], ...]


# --- the client -----------------------------------------------------------------------------------


@runtime_checkable
class TellsSchemas(Protocol):
    """What a `Transport` may do besides: a client is told of schemas by those that can."""

    def schemas(self) -> Schemas:
        """Fetch the schemas of the tables that the client may see."""
        ...


class Transport(Protocol):
    """How a client reaches its gateway.

    Methods raise `lakesync.errors`: what the gateway answered, or `Unreachable` if nothing
    came back. Repeating either is always safe.
    """

    def push(self, push: Push) -> PushReceipt:
        """Hand deltas over; what the receipt counts as accepted is durable."""
        ...

    def pull(self, pull: Pull) -> PullPage:
        """Fetch the next page."""
        ...


class Hearer(Protocol):
    """Who hears of changes without asking: a client. Its methods may be called from any thread."""

    client_id: str

    def hear(self, page: PullPage) -> bool:
        """Apply a broadcast that fits the cursor; tells whether there is nothing to pull for it."""
        ...

    def wake(self) -> None:
        """Sync now."""
        ...

    def next_pull(self) -> Pull:
        """Give what asks for a delta behind the cursor."""
        ...

    def on_connected(self, *, is_open: bool) -> None:
        """Note whether changes are heard of."""
        ...


class Listening(Protocol):
    """What goes on listening until it is stopped."""

    def stop(self) -> None:
        """End it. Safe to repeat."""
        ...


@runtime_checkable
class Listens(Protocol):
    """What a `Transport` may do besides: tell a client of changes without being asked."""

    def listen(self, hearer: Hearer) -> Listening | None:
        """Begin to tell; None if there is nothing to listen to."""
        ...


# --- who may come in ------------------------------------------------------------------------------


GATEWAY_KIND: Final = "gateway"


@dataclass(frozen=True, slots=True)
class Revocation:
    """A user or a client that is shut out of a gateway; or everybody, as it was deleted."""

    kind: str
    """``user``, ``client``, or `GATEWAY_KIND`."""
    name: str
    """The user, the client id, or the gateway."""
    at_ms: int
    by: str
    """The user who did it."""


class AccessStore(Protocol):
    """Whose each client is, and who is shut out.

    What is read of clients may be a moment old; what `bind` gives and what is revoked is not.
    """

    def user_of(self, gateway: str, client_id: str) -> str | None:
        """Give the user whom a client is bound to; None if it is bound to nobody."""
        ...

    def bind(self, gateway: str, client_id: str, user: str) -> str:
        """Bind a client to a user, unless it is bound; give whom it is bound to now."""
        ...

    def release(self, gateway: str, client_id: str) -> None:
        """Bind a client to nobody; whoever uses it next has it. Safe to repeat."""
        ...

    def revocations(self, gateway: str) -> list[Revocation]:
        """Give all that is revoked, clients before users, each in the order of their names."""
        ...

    def revoke(self, gateway: str, revocation: Revocation) -> None:
        """Shut a user or a client out; again is no different, but for when and by whom."""
        ...

    def restore(self, gateway: str, kind: str, name: str) -> None:
        """Let a user or a client in again. Safe to repeat."""
        ...


# --- how much a gateway may use -------------------------------------------------------------------


class Usage(NamedTuple):
    """How much was pushed."""

    pushes: int = 0
    deltas: int = 0
    bytes: int = 0
    """Of request bodies, inflated."""


class Quota(NamedTuple):
    """How much may be pushed each second; 0 for any amount, None where the stack's holds."""

    pushes: int | None = None
    deltas: int | None = None
    bytes: int | None = None


@dataclass(frozen=True, slots=True)
class WindowUsage:
    """What all processes together have reported of one gateway in one window of time."""

    window: int
    usage: Usage
    quota: Quota
    """What the operator has set for this gateway."""


class QuotaStore(Protocol):
    """What gateways use, and what operators let them use."""

    def report(self, gateway: str, window: int, usage: Usage) -> WindowUsage:
        """Add to what a gateway used in a window, and give what all have reported of it.

        Where a later window has begun already, by a clock that is ahead, it is added to that one.

        Raises:
            lakesync.errors.Unavailable: nothing, or everything, was added.
        """
        ...

    def quota(self, gateway: str) -> Quota:
        """Give what the operator has set for a gateway."""
        ...

    def set_quota(self, gateway: str, quota: Quota) -> None:
        """Set how much a gateway may use, in place of what was set before. Safe to repeat."""
        ...


# --- connectors -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StoredConnector:
    """A connector of a gateway, as it is registered, and how far it is."""

    name: str
    definition: bytes
    """What an administrator registered; see `lakesync.connectors.definition`."""
    state: bytes
    """How far it is; empty if it was never polled. See `lakesync.connectors.state`."""
    lease: int
    """Grows each time that somebody takes the right to poll it."""
    leased_until_ms: int


class ConnectorStore(Protocol):
    """The connectors of gateways: read as they are, changed under conditions."""

    def connectors(self, gateway: str) -> list[StoredConnector]:
        """Give a gateway's connectors, in the order of their names."""
        ...

    def connector(self, gateway: str, name: str) -> StoredConnector | None:
        """Give one of them; None if there is none of that name."""
        ...

    def add(self, gateway: str, name: str, definition: bytes, now_ms: int) -> bool:
        """Register a connector; False if the name is in use, and nothing was written."""
        ...

    def change(self, gateway: str, name: str, seen: bytes, definition: bytes) -> bool:
        """Change a definition; False if it was not as seen, and nothing was written."""
        ...

    def remove(self, gateway: str, name: str) -> None:
        """Remove a connector. Safe to repeat."""
        ...

    def lease(
        self, gateway: str, name: str, now_ms: int, until_ms: int, mine: int = 0
    ) -> StoredConnector | None:
        """Take the right to poll a connector, if nobody has it, or ``mine`` is the lease in force.

        Returns:
            The connector with a lease that is the caller's; None if somebody else has it, or there
            is no such connector.
        """
        ...

    def save(self, gateway: str, name: str, lease: int, state: bytes, until_ms: int) -> bool:
        """Save how far a connector is, and until when the lease holds; False if it is another's."""
        ...


class SecretStore(Protocol):
    """Secrets by their names. What is stored is never told to a caller of the API."""

    def get(self, name: str) -> Mapping[str, str]:
        """Give a secret's fields; none if there is no such secret."""
        ...

    def put(self, name: str, fields: Mapping[str, str]) -> None:
        """Store a secret, in place of what was stored under the name. Safe to repeat."""
        ...

    def remove(self, name: str) -> None:
        """Remove a secret for good. Safe to repeat."""
        ...


class PollSchedules(Protocol):
    """When connectors are polled, and polling one now."""

    def put(self, gateway: str, name: str, every_minutes: int, *, paused: bool) -> None:
        """Poll a connector at an interval, in place of what was said before. Safe to repeat."""
        ...

    def remove(self, gateway: str, name: str) -> None:
        """Poll it no more. Safe to repeat."""
        ...

    def poll_now(self, gateway: str, name: str) -> None:
        """Begin a poll, and do not wait for it."""


# --- actions --------------------------------------------------------------------------------------


class StoredHandler(NamedTuple):
    """An action handler of a gateway, as it was registered."""

    name: str
    definition: bytes
    """Its type, its settings without secrets, who may run what."""


class HandlerStore(Protocol):
    """The action handlers of each gateway. Reads are strongly consistent."""

    def handlers(self, gateway: str) -> list[StoredHandler]:
        """Give a gateway's action handlers, in the order of their names."""
        ...

    def add(self, gateway: str, name: str, definition: bytes, *, replace: bool) -> bool:
        """Register one; False if the name is in use, unless it may be replaced."""
        ...

    def remove(self, gateway: str, name: str) -> bool:
        """Remove one; False if there was none of that name."""
        ...


class ActionKey(NamedTuple):
    """How a client names an action."""

    gateway: str
    client_id: str
    action_id: str
    idempotency_key: str
    """Empty for none."""


class RunState(Enum):
    """How far the run of an action is."""

    OPEN = "open"
    """Nothing happened outside: it may be run."""
    RUNNING = "running"
    """Somebody runs it; past `ActionRun.until_ms` nobody does, and nobody knows what was done."""
    ENDED = "ended"
    """Its outcome is final."""


@dataclass(frozen=True, slots=True)
class ActionRun:
    """What is remembered of an action that was begun."""

    action_id: str
    """The id under which it was begun first; with an idempotency key others may name it too."""
    digest: str
    """What was asked for."""
    state: RunState
    owner: str
    """Who began or ended it: a token for each attempt."""
    until_ms: int = 0
    outcome: bytes = b""
    """The outcome, once it is final."""


class ActionRuns(Protocol):
    """What became of each action, for as long as a client may ask. Reads are strongly consistent.

    Whoever begins an action is the only one who runs it: of any number who try, one succeeds.
    """

    def get(self, key: ActionKey) -> ActionRun | None:
        """Give the run of an action, by its id, else by its idempotency key."""
        ...

    def begin(self, key: ActionKey, seen: ActionRun | None, run: ActionRun, now_ms: int) -> bool:
        """Begin a run, if it still stands as it was seen; None: if there is none."""
        ...

    def end(self, key: ActionKey, run: ActionRun, now_ms: int) -> bool:
        """Note how a run stands that ``run.owner`` began; False if somebody else has begun it."""
        ...

    def count(self, gateway: str, counter: str, now_ms: int, number_max: int) -> bool:
        """Count one within this minute; False, and not counted, if that would be too many."""
        ...


# --- who is connected -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Connection:
    """One open WebSocket of a client."""

    gateway: str
    id: str
    """As API Gateway names it."""
    client_id: str
    user: str
    expires_s: float
    """When its token expires, in seconds since 1970; it is not served any longer."""
    opened_ms: int
    claims: Mapping[str, Any]
    """Those of the token, by which sync rules decide."""
    scope: str = ""
    """A digest of the scope that decided, when the connection was last looked at."""
    rules: str = ""
    """A digest of the rules that gave the scope."""


@dataclass(frozen=True, slots=True)
class NotifyState:
    """How far the connections of a gateway have been notified."""

    notified: Stamp = 0
    """Broadcasts were made of all commits up to here; 0 if none ever was."""
    wanted: Stamp = 0
    """A commit that was left to whoever was at work."""


class Connections(Protocol):
    """The open WebSockets, and how far those of each gateway have been notified.

    Reads are strongly consistent. Of a gateway at most one process notifies at a time: who finds
    another at work leaves its commit to that one, and nothing is left undone between the two.
    """

    def add(self, connection: Connection) -> None:
        """Remember a connection, or what has changed of it."""
        ...

    def get(self, gateway: str, connection_id: str) -> Connection | None:
        """Give a connection; None if it is not remembered."""
        ...

    def rescope(self, connection: Connection) -> None:
        """Remember the scope of a connection, unless it is gone meanwhile."""
        ...

    def remove(self, gateway: str, connection_id: str) -> None:
        """Forget a connection. Safe to repeat."""
        ...

    def of_gateway(self, gateway: str) -> tuple[list[Connection], NotifyState]:
        """Give all connections of a gateway, and how far they have been notified."""
        ...

    def scan(self, place: str) -> tuple[list[Connection], str]:
        """Give some connections of all gateways from a place on, and the next place, or ""."""
        ...

    def begin(self, gateway: str, owner: str, now_ms: int, until_ms: int) -> bool:
        """Become the one who notifies; False if another is at work.

        Args:
            gateway: whose.
            owner: who asks: the same name may begin again what it began before.
            now_ms: the time, at which another's turn may have ended.
            until_ms: when the turn ends by itself.
        """
        ...

    def leave(self, gateway: str, commit: Stamp, now_ms: int) -> bool:
        """Leave a commit to whoever is at work; False if nobody is any more."""
        ...

    def end(self, gateway: str, owner: str, notified: Stamp) -> bool:
        """Note how far was notified, and end the turn.

        Returns:
            False if a later commit was left meanwhile: then the turn goes on.
        """
        ...


class Delivered(Enum):
    """What became of a frame that was sent to a connection."""

    SENT = "sent"
    GONE = "gone"
    """The connection is closed."""
    BUSY = "busy"
    """Its reader is slow, or the account sends too much at once."""


class Sockets(Protocol):
    """The open WebSockets' other side. Safe to use from several threads."""

    def send(self, connection_id: str, frame: str) -> Delivered:
        """Send a text frame.

        Raises:
            lakesync.errors.Unavailable: it is not known whether it was sent.
        """
        ...

    def close(self, connection_id: str) -> None:
        """Close a connection. Safe to repeat."""
        ...
