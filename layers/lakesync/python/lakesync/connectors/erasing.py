"""Removes rows from the storage of connectors: from dead letters, and from pages that were given.

A page is stored before it is given, so that it is the same when it is read again in its poll. After
the poll's end it is no longer needed, but stays until the table's next page.

Rules of this module
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

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lakesync.connectors.port import PREFIX, Storage, digest
from lakesync.connectors.state import DeadLetters, PollState, state_from

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from lakesync.ports import ConnectorStore, ObjectStore, RowKey, StoredConnector, WallClock

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


def erase(
    store: ConnectorStore,
    objects: ObjectStore,
    gateway: str,
    keys: Collection[RowKey],
    wall_clock: WallClock,
) -> list[str]:
    """Remove rows from connectors' storage; returns the connectors that it must wait for.

    Safe to repeat, and to kill: the lease of an interrupted run ends within a minute.

    Args:
        store: the registered connectors.
        objects: the storage.
        gateway: the gateway's id.
        keys: the rows, by their tables in the gateway.
        wall_clock: the time.
    """
    waits_for = []
    for stored in store.connectors(gateway):
        storage = Storage(objects, gateway, stored.name)
        if storage.paths() and not _erased(store, storage, stored, keys, wall_clock):
            waits_for.append(stored.name)  # most store nothing, so no lease is needed
    return waits_for


def kept_of(objects: ObjectStore, gateway: str, key: RowKey) -> int:
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
