"""A connector's state: what one poll leaves for the next, and how rows are erased from it.

Dead letters and deletions are part of it. A row that was found deleted by comparing may come back,
whatever its own time. A deletion that a source reports has a time of its own. One that is found
because a row is missing has none, and is stamped with its poll. If the row comes back unchanged,
because permission hid it, or a filter or an archive, its own time is earlier than that stamp, and
the deletion would win.

Rules of deletions
    1. The ids of such deletions are noted in the connector's storage before their page is pushed,
       and stay when the connector is reset.
    2. A noted row that comes with an earlier time is stamped just behind the deletion. The stamp is
       noted before its page is pushed, so a page that is read twice gives the same deltas. A later
       change whose time is earlier, too, gets a later stamp.
    3. Only rows that changed before the table's latest deletion are looked up: of most pages none.

Rows are erased from dead letters, and from pages that were given. A page is stored before it is
given, so that it is the same when it is read again in its poll. After the poll's end it is no
longer needed, but stays until the table's next page.

Rules of erasing
    1. A connector is changed under its lease, while no poll of it is running. The lease is renewed
       before each page is written, so no page of a later poll is overwritten. If a poll left a
       table with an open page, the erasure waits for that table: the page is given again.
    2. Parts of an extraction behind the cursor, which were not given yet, stay. The next poll gives
       them, and repeating the erasure then removes them.
    3. Pages have a row's id, but not its table in the gateway: rows with that id are removed from
       the pages of every table.

Law E10: ``docs/spec/erasure.md``.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from lakesync.connectors.port import PREFIX, Storage, digest
from lakesync.core.clock import stamp
from lakesync.core.delta import parse
from lakesync.errors import AdapterRefused, ValidationFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from lakesync.connectors.port import Change, SourcePage
    from lakesync.core.delta import Delta
    from lakesync.errors import LakeSyncError
    from lakesync.ports import ConnectorStore, ObjectStore, RowKey, StoredConnector, WallClock

    Noted: TypeAlias = list[int]
    """Microseconds since 1970: when a row was found deleted, the time of the row's version that
    came back since (0: none did), and the stamp that this version got."""

CURSOR_BYTES_MAX: Final = 2_048
"""A connector's cursor in one table; all cursors are in one item with the other state."""


@dataclass
class Fault:
    """What went wrong last."""

    code: str
    message: str
    at_ms: int
    table: str = ""


@dataclass
class PollState:
    """How far a connector is."""

    poll_ms: int = 0
    """When the unfinished poll began; 0 without one. It survives a crash."""
    finished: list[str] = field(default_factory=list)
    """The tables that this poll is done with: all was read, or it continues without them."""
    begun: dict[str, int] = field(default_factory=dict)
    """By table, when the poll began that left a page of it open and continued without it: the table
    is read with that time until its end."""
    cursors: dict[str, str] = field(default_factory=dict)
    deleted: dict[str, int] = field(default_factory=dict)
    """By table, the latest poll that found deletions by comparing; see `deletions`."""
    rows: int = 0
    """Rows that were pushed since the beginning, deletions included."""
    dead_letters: int = 0
    polls: int = 0
    """Polls that came to their end."""
    polled_ms: int = 0
    """When the last of those began: everything of before is here."""
    fault: Fault | None = None
    """None once a whole poll came to its end without one."""
    source: dict[str, str | int] = field(default_factory=dict)
    """What the source said last of itself: `SourcePage.report`."""
    wait_until_ms: int = 0
    """Neither the source nor the gateway is asked before."""
    asked_s: int = 0
    """The pause that a table asked for in the unfinished poll; 0 if none did."""
    failures: int = 0
    """Consecutive pauses without progress."""
    job_ms: int = 0
    """When a job was last requested to read large tables; 0 if none was in this poll."""
    job_moved: bool = False
    """Whether that job brought something."""

    looked_ms: int = 0
    """When the source last told its columns."""
    schema_changes: list[dict[str, Any]] = field(default_factory=list)
    """The latest changes of the source's schema: `lakesync.connectors.polls`."""

    def begins(self, source: str) -> int:
        return self.begun.get(source, self.poll_ms)

    def to_json(self) -> bytes:
        return json.dumps(asdict(self), separators=(",", ":"), ensure_ascii=False).encode()

    def note(self, error: LakeSyncError, now_ms: int, table: str = "") -> None:
        self.fault = Fault(error.code, error.message[:1_000], now_ms, table)


def state_from(body: bytes) -> PollState:
    """Read what `PollState.to_json` wrote; empty for a connector that was never polled."""
    if not body:
        return PollState()
    stored: dict[str, Any] = json.loads(body)
    fault = stored.pop("fault", None)
    known = {name: stored[name] for name in PollState.__dataclass_fields__ if name in stored}
    return PollState(**known, fault=Fault(**fault) if fault else None)


def check_cursor(cursor: str) -> str:
    """Return a cursor if it can be stored.

    Raises:
        ValidationFailed: it is larger than `CURSOR_BYTES_MAX`.
    """
    if len(cursor.encode()) > CURSOR_BYTES_MAX:
        raise ValidationFailed(
            f"a connector's cursor may have {CURSOR_BYTES_MAX} bytes; keep what is larger in its "
            "storage",
            field="cursor",
        )
    return cursor


# --- dead letters ---------------------------------------------------------------------------------


CONNECTOR_DEAD_LETTERS_MAX: Final = 1_000
"""Dead letters that one connector may have; with more, the fault is not in single rows."""
_FOLDER: Final = "letters"


def counts_first(state: PollState, save: Callable[[PollState], object]) -> Callable[[], None]:
    """Return a function that records that there are dead letters, before the first is written.

    If the process dies after that, the next one looks for them. So they need not be listed for each
    page.
    """

    def begins() -> None:
        if not state.dead_letters:
            state.dead_letters = 1
            save(state)

    return begins


class DeadLetters:
    """The dead letters of one connector: one object for each row, written before its cursor.

    Args:
        begins: called before each one is written; see `counts_first`.
    """

    def __init__(self, storage: Storage, begins: Callable[[], object] = int) -> None:
        self._storage = storage
        self._begins = begins
        self.changed = False

    @cached_property
    def _names(self) -> set[str]:
        return set(self._storage.names(_FOLDER))

    @property
    def names(self) -> frozenset[str]:
        """What those are called that there are: digests of their tables and ids."""
        return frozenset(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def add(self, table: str, row_id: str, error: LakeSyncError, delta: Delta | None) -> None:
        """Store a row with its reason, in place of its former dead letter.

        Raises:
            AdapterRefused: there are `CONNECTOR_DEAD_LETTERS_MAX` already.
        """
        name = digest(table, row_id)
        if name not in self._names and len(self._names) >= CONNECTOR_DEAD_LETTERS_MAX:
            raise AdapterRefused(
                f"{CONNECTOR_DEAD_LETTERS_MAX} rows were refused already, the last because "
                f"{error.message}: mend what refuses them, then reset the connector"
            )
        letter: dict[str, Any] = {
            "table": table,
            "rowId": row_id,
            "code": error.code,
            "reason": error.message,
        }
        if delta is not None:
            columns = {name: parse(raw) for name, raw in delta.columns}
            letter |= {"op": delta.op.name, "hlc": str(delta.hlc), "columns": columns}
        self._begins()
        self._storage.write(letter, _FOLDER, name)
        self._names.add(name)
        self.changed = True

    def take_back(self, table: str, row_id: str) -> None:
        name = digest(table, row_id)
        if name in self._names:
            self._storage.remove(_FOLDER, name)
            self._names.discard(name)
            self.changed = True

    def first(self, count: int) -> list[dict[str, Any]]:
        read = (self._storage.read(_FOLDER, name) for name in sorted(self._names)[:count])
        return [letter for letter in read if letter is not None]


# --- deletions ------------------------------------------------------------------------------------


DELETIONS: Final = "deletions"
"""The folder of the notes."""
NOTED_DELETIONS_MAX: Final = 20_000
"""Deletions that are noted in one of the 16 objects of a table; of more, the newest."""
_US: Final = 1_000


class Deletions:
    """The noted deletions of one connector, during one poll or webhook.

    Args:
        may_note: False if another process may be polling: then nothing is written.
    """

    def __init__(self, storage: Storage, *, may_note: bool = True) -> None:
        self._storage = storage
        self._may_note = may_note
        self._objects: dict[tuple[str, ...], dict[str, Noted]] = {}
        self._changed: set[tuple[str, ...]] = set()

    def dated(self, state: PollState, source: str, page: SourcePage, poll_ms: int) -> SourcePage:
        """Return a page in which no row is older than its own deletion; note the page's deletions.

        Args:
            state: the connector's; when each table last had such a deletion.
            page: what was read of it. If its connector dates its changes itself, it is unchanged.
            poll_ms: when the poll began as of which the table is read.
        """
        if page.is_dated or not (state.deleted or any(map(_is_by_comparing, page.changes))):
            return page
        changes = []
        for change in page.changes:
            table = change.table or source
            if _is_by_comparing(change):
                self._note(state, table, change.row_id, poll_ms)
                changes.append(change)
            else:
                changes.append(self._behind_deletion(state, table, change))
        self._write()
        return replace(page, changes=tuple(changes))

    def _behind_deletion(self, state: PollState, table: str, change: Change) -> Change:
        changed_us = change.changed_us
        # A millisecond more than the deletion: what came back was stamped just behind it.
        behind_us = (state.deleted.get(table, -1) + 1) * _US
        if changed_us is None or change.columns is None or changed_us > behind_us:
            return change
        path = _path(table, change.row_id)
        noted = self._read(path).get(change.row_id)
        if noted is None or changed_us > max(noted[0], noted[2]) or changed_us < noted[1]:
            return change
        if changed_us > noted[1] or not noted[2]:
            noted[1:] = [changed_us, max(noted[0], noted[2]) + 1]
            self._changed.add(path)
        return change._replace(hlc=stamp(*divmod(noted[2], _US)))

    def _note(self, state: PollState, table: str, row_id: str, poll_ms: int) -> None:
        path = _path(table, row_id)
        self._read(path)[row_id] = [poll_ms * _US, 0, 0]
        self._changed.add(path)
        state.deleted[table] = max(state.deleted.get(table, 0), poll_ms)

    def _read(self, path: tuple[str, ...]) -> dict[str, Noted]:
        if path not in self._objects:
            self._objects[path] = self._storage.read(*path) or {}
        return self._objects[path]

    def _write(self) -> None:
        if not self._may_note:
            return
        for path in sorted(self._changed):
            noted = self._objects[path]
            if len(noted) > NOTED_DELETIONS_MAX:
                newest = sorted(noted.items(), key=lambda each: each[1][0])
                noted = self._objects[path] = dict(newest[-NOTED_DELETIONS_MAX:])
            self._storage.write(noted, *path)
        self._changed.clear()


def _path(table: str, row_id: str) -> tuple[str, ...]:
    return (DELETIONS, digest(table), digest(row_id)[0])


def _is_by_comparing(change: Change) -> bool:
    return change.columns is None and change.changed_us is None and change.hlc is None


# --- erasing rows ---------------------------------------------------------------------------------


_LEASE_MS: Final = 60_000
_LETTERS: Final = "letters"
_LISTS: Final = {"listing": ("page",), "ranges": ("changed", "unreadable")}
"""By folder, the lists in its objects that contain rows with values; for dlt's parts, all."""
_PARTS: Final = "dlt"


class _Page(NamedTuple):
    """An object that holds pages."""

    path: tuple[str, ...]
    body: Any
    lists: tuple[list[Any], ...]


def erase_rows(
    store: ConnectorStore,
    objects: ObjectStore,
    gateway: str,
    keys: Collection[RowKey],
    wall_clock: WallClock,
) -> list[str]:
    """Remove rows from connectors' storage; returns the connectors that it must wait for.

    Safe to repeat, and to kill: the lease of an interrupted run ends within a minute.

    Args:
        keys: the rows, by their tables in the gateway.
    """
    waits_for = []
    for stored in store.connectors(gateway):
        storage = Storage(objects, gateway, stored.name)
        if storage.paths() and not _erased(store, storage, stored, keys, wall_clock):
            waits_for.append(stored.name)  # most store nothing, so no lease is needed
    return waits_for


def kept_of_row(objects: ObjectStore, gateway: str, key: RowKey) -> int:
    """Count a row's dead letters, and the stored pages with a row of that id."""
    prefix, number = f"{PREFIX}/{gateway}/", 0
    for name in sorted({each.split("/")[2] for each in objects.list_objects(prefix)}):
        storage = Storage(objects, gateway, name)
        number += digest(*key) in storage.names(_LETTERS)
        for page in _pages(storage):
            number += sum(_names(each, {key[1]}) for part in page.lists for each in part)
    return number


@dataclass
class _Lease:
    """The right to change what a connector keeps, as a poll has it."""

    store: ConnectorStore
    storage: Storage
    number: int
    state: PollState
    wall_clock: WallClock

    def save(self, *, ends: bool = False) -> bool:
        """Save the connector's state and extend the lease; False if it is lost."""
        until_ms = 0 if ends else self.wall_clock() + _LEASE_MS
        body = self.state.to_json()
        gateway, name = self.storage.gateway, self.storage.name
        return self.store.save(gateway, name, self.number, body, until_ms)


def _erased(
    store: ConnectorStore,
    storage: Storage,
    stored: StoredConnector,
    keys: Collection[RowKey],
    wall_clock: WallClock,
) -> bool:
    """Remove what one connector keeps; False if that has to wait."""
    now_ms = wall_clock()
    leased = store.lease(storage.gateway, stored.name, now_ms, now_ms + _LEASE_MS)
    if leased is None:
        return False
    lease = _Lease(store, storage, leased.lease, state_from(leased.state), wall_clock)
    letters = DeadLetters(storage)
    for table, row_id in keys:
        letters.take_back(table, row_id)
    if letters.changed:
        lease.state.dead_letters = len(letters)
    is_done = _pages_cleaned(lease, {row_id for _, row_id in keys})
    return lease.save(ends=True) and is_done


def _pages_cleaned(lease: _Lease, row_ids: set[str]) -> bool:
    """Remove rows from pages that were given; False if one is in a page still to be given."""
    cursors = {digest(source): cursor for source, cursor in lease.state.cursors.items()}
    open_tables = {*lease.state.begun, *map(digest, lease.state.begun)}
    is_done = True
    for page in _pages(lease.storage):
        if not any(_names(each, row_ids) for part in page.lists for each in part):
            continue
        is_open = lease.state.poll_ms or page.path[1] in open_tables
        may_be_given = is_open or not _was_given(lease.storage, page, cursors)
        if may_be_given or not lease.save():
            is_done = False
            continue
        for part in page.lists:
            part[:] = [each for each in part if not _names(each, row_ids)]
        lease.storage.write(page.body, *page.path)
    return is_done


def _was_given(storage: Storage, page: _Page, cursors: dict[str, str]) -> bool:
    """Return whether a page of an ended poll was given; some of dlt's parts were not."""
    if page.path[0] != _PARTS:
        return True
    number, _, given = cursors.get(page.path[1], "").partition(":")
    extracted = storage.read(*page.path[:-1], "extracted") or {"number": 0}
    part = int(page.path[-1].removeprefix("part"))
    return extracted["number"] == int(number or 0) and part < int(given or 0)


def _pages(storage: Storage) -> Iterator[_Page]:
    """Yield all objects of a connector that hold pages."""
    for path in storage.paths():
        folder, last = path[0], path[-1]
        if folder in _LISTS or (folder == _PARTS and last.startswith("part")):
            body = storage.read(*path)
            if body is not None:  # removed since it was listed
                lists = body if folder == _PARTS else [body.get(one, []) for one in _LISTS[folder]]
                yield _Page(path, body, tuple(lists))


def _names(change: Any, row_ids: set[str]) -> bool:
    """Return whether a change is of one of some rows, and has values; a deletion has none."""
    return change[0] in row_ids and change[1] is not None
