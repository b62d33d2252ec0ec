"""Removes what connectors keep of rows in their storage: dead letters, and pages that were given.

A page is written down before it is given, so that it is the same when it is asked for again in its
poll. Once that came to its end nobody asks for it: it lies there until the table's next one.

Rules of this module
    1. A connector is changed under its lease, while no poll of it is under way. Before each page is
       written the lease is held anew, so none is written that a poll wrote meanwhile. A table that
       a poll had to leave with a page open is waited for: that page is given again.
    2. What was not given yet stays: a part of an extraction behind the cursor. Its next poll gives
       it, and an erasure that is repeated then removes it.
    3. Pages name a row by its id, and not by its table in the gateway: a row of that id goes from
       the pages of every table.

Law E10: ``docs/spec/erasure.md``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lakesync.connectors.dead_letters import DeadLetters
from lakesync.connectors.state import PollState, state_from
from lakesync.connectors.storage import PREFIX, Storage, digest

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from lakesync.ports import ConnectorStore, ObjectStore, RowKey, StoredConnector, WallClock

_LEASE_MS: Final = 60_000
_LETTERS: Final = "letters"
_LISTS: Final = {"listing": ("page",), "ranges": ("changed", "unreadable")}
"""By the folder, which lists of its objects name rows with their values; of dlt's parts all."""
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
    """Remove what is kept of rows, and give the connectors that are waited for.

    Safe to repeat, and to kill: a connector that was left leased is free again within a minute.

    Args:
        store: what is registered.
        objects: where it is kept.
        gateway: whose rows.
        keys: the rows, by their tables in the gateway.
        wall_clock: the time.
    """
    waits_for = []
    for stored in store.connectors(gateway):
        storage = Storage(objects, gateway, stored.name)
        if storage.paths() and not _erased(store, storage, stored, keys, wall_clock):
            waits_for.append(stored.name)  # of most nothing is kept: no lease is taken
    return waits_for


def kept_of(objects: ObjectStore, gateway: str, key: RowKey) -> int:
    """Count what connectors keep of a row: dead letters, and pages with a row of that id."""
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
        """Save how far the connector is, and hold the lease for longer; False if it is lost."""
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
    """Take rows out of the pages that were given; False if any is in one that may be given yet."""
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
    """Tell whether a page of a poll that came to its end was given: of dlt's parts not all are."""
    if page.path[0] != _PARTS:
        return True
    number, _, given = cursors.get(page.path[1], "").partition(":")
    extracted = storage.read(*page.path[:-1], "extracted") or {"number": 0}
    part = int(page.path[-1].removeprefix("part"))
    return extracted["number"] == int(number or 0) and part < int(given or 0)


def _pages(storage: Storage) -> Iterator[_Page]:
    """Give all objects of a connector that hold pages."""
    for path in storage.paths():
        folder, last = path[0], path[-1]
        if folder in _LISTS or (folder == _PARTS and last.startswith("part")):
            body = storage.read(*path)
            if body is not None:  # removed since it was listed
                lists = body if folder == _PARTS else [body.get(one, []) for one in _LISTS[folder]]
                yield _Page(path, body, tuple(lists))


def _names(change: Any, row_ids: set[str]) -> bool:
    """Tell whether a change is of one of some rows, and bears values; a deletion bears none."""
    return change[0] in row_ids and change[1] is not None
