"""Finds rows that a source no longer has, by comparing with what was read of it before.

`KnownRows` has the rows that a connector has read from one table. Rows belong to *owners*, which
can be listed: an issue owns itself, or its comments. Ids are kept in the connector's storage, in
objects of about a thousand owners.

Rules of owners
    1. A row is added before it is given. If the process is killed between, a row that was not given
       has been added; deleting it is harmless.
    2. An owner missing from a listing is gone only if the source confirms it: a listing that is
       read page by page during changes may miss some.
    3. The result of a comparison is stored before it is given, so a page that is read twice gives
       the same rows.

A listing reads a table without change times: all its rows at each poll, by difference. It is for
tables of some thousand rows, which a source lists page by page: its projects, its users. The
previous listing is kept as digests, in one object of the connector's storage.

Rules of listings
    1. A page is stored before it is given: read again in the same poll, it is the same.
    2. A row missing from a listing is gone only if the source confirms it.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from lakesync.connectors.port import BroughtRows, Change, SourcePage, digest
from lakesync.errors import AdapterRefused
from lakesync.wire.records import decode_row_state

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from lakesync.connectors.port import Storage, TellsBrought
    from lakesync.core.merge import RowState
    from lakesync.ports import Rows

    Row: TypeAlias = tuple[str, Mapping[str, Any]]
    """A row's id and columns."""

# --- rows that were given -------------------------------------------------------------------------


_GIVEN_FOLDER: Final = "given"
_BY_WEBHOOK: Final = "webhooks"
_OWNERS: Final = 1_000
"""Owners of one object, where their ids are numbers in a row."""


class Compared(NamedTuple):
    """The result of the comparison of one object."""

    gone: Sequence[str]
    """Rows that were returned and whose owner no longer exists."""
    missing: Sequence[str]
    """Owners that are listed, of which nothing was given."""


class KnownRows:
    """Ids of the rows that were given of one table."""

    def __init__(self, storage: Storage, table: str) -> None:
        self._storage = storage
        self._table = table

    def add(self, rows: Iterable[str]) -> None:
        """Add rows that own themselves. Safe to repeat."""
        for name, owners in _by_object(rows).items():
            stored = self._read(name)
            new = [owner for owner in owners if owner not in stored["rows"]]
            if new:
                stored["rows"].update({owner: [owner] for owner in new})
                self._write(name, stored)

    def add_to(self, rows: Mapping[str, Sequence[str]]) -> None:
        """Add rows of owners, whatever else they own. Safe to repeat."""
        for name, owners in _by_object(rows).items():
            stored = self._read(name)
            before = {owner: stored["rows"].get(owner, []) for owner in owners}
            after = {each: list(dict.fromkeys([*before[each], *rows[each]])) for each in owners}
            if after != before:
                stored["rows"] |= after
                self._write(name, stored)

    def former(self, owners: Iterable[str]) -> list[str]:
        """Return the rows of owners that `compare` found gone, and that exist again."""
        return [
            row
            for name, some in _by_object(owners).items()
            for former in [self._read(name)["former"]]
            for owner in some
            for row in former.get(owner, ())
        ]

    def note_by_webhook(self, row_id: str) -> None:
        """Note a row that owns itself, from a webhook, while a poll may be running.

        Safe to repeat. It is a separate object, so that no other is overwritten.
        """
        self._storage.write(True, _BY_WEBHOOK, self._table, row_id)

    def add_by_webhook(self) -> None:
        """Add the rows of webhooks. Safe to repeat, and to kill: notes are removed last."""
        rows = self._storage.names(_BY_WEBHOOK, self._table)
        self.add(rows)
        for row_id in rows:
            self._storage.remove(_BY_WEBHOOK, self._table, row_id)

    def replace(
        self,
        rows: Mapping[str, Sequence[str]],
        poll_ms: int,
        exist: Callable[[Sequence[str]], set[str]],
    ) -> list[str]:
        """Note all rows of some owners, and give those that are gone. Safe to repeat in one poll.

        Args:
            rows: ids by owner.
            poll_ms: the poll; within it the same result is given again.
            exist: asks the source which of some rows exist.
        """
        gone: list[str] = []
        for name, owners in _by_object(rows).items():
            stored = self._read(name)
            before = {owner: stored["rows"].get(owner) for owner in owners}
            lost = [
                row for owner in owners for row in before[owner] or () if row not in rows[owner]
            ]
            remaining = exist(lost) if lost else set()
            for owner in owners:
                kept = [row for row in before[owner] or () if row in remaining]
                stored["rows"][owner] = list(dict.fromkeys([*rows[owner], *kept]))
                taken = [row for row in before[owner] or () if row not in stored["rows"][owner]]
                same_poll, earlier = stored["taken"].get(owner, (0, []))
                if same_poll == poll_ms:
                    taken = list(dict.fromkeys([*earlier, *taken]))
                if taken:
                    stored["taken"][owner] = (poll_ms, taken)
                else:
                    stored["taken"].pop(owner, None)
                gone += taken
            if any(before[owner] != stored["rows"][owner] for owner in owners):
                self._write(name, stored)
        return gone

    def part(self, owner: str, start: int, rows: Sequence[str]) -> list[str]:
        """Note some rows of an owner with several pages of rows; returns those noted so far.

        Safe to repeat. Only one owner at a time can be noted.
        """
        (name,) = _by_object([owner])
        stored = self._read(name)
        before = stored["parts"][1] if stored["parts"][0] == owner else []
        parts = [*before[:start], *rows]
        stored["parts"] = [owner, parts]
        self._write(name, stored)
        return parts

    def note_listed(self, owners: Iterable[str], poll_ms: int) -> None:
        """Note that a listing of a poll has some owners. Safe to repeat."""
        for name, some in _by_object(owners).items():
            stored = self._read(name)
            listed = stored["listed"] if stored["listedMs"] == poll_ms else []
            stored["listed"] = list(dict.fromkeys([*listed, *some]))
            stored["listedMs"] = poll_ms
            self._write(name, stored)

    def objects(self) -> Sequence[str]:
        """Return the names of all objects, in order."""
        return self._storage.names(_GIVEN_FOLDER, self._table)

    def compare(
        self, name: str, poll_ms: int, exist: Callable[[Sequence[str]], set[str]]
    ) -> Compared:
        """Compare an object with a poll's listing; repeated in that poll, it gives the same.

        Args:
            poll_ms: the poll whose listing is complete.
            exist: asks the source which of some owners exist.
        """
        stored = self._read(name)
        if stored["comparedMs"] != poll_ms:
            listed = stored["listed"] if stored["listedMs"] == poll_ms else []
            unlisted = [owner for owner in stored["rows"] if owner not in set(listed)]
            remaining = exist(unlisted) if unlisted else set()
            stored["missing"] = [owner for owner in listed if owner not in stored["rows"]]
            gone = {each: stored["rows"].pop(each) for each in unlisted if each not in remaining}
            stored["gone"] = [row for rows in gone.values() for row in rows]
            back = stored["former"].keys() & set(listed)
            stored["former"] = {
                owner: rows
                for owner, rows in (stored["former"] | gone).items()
                if owner not in back or owner in stored["missing"]
            }
            stored["listed"], stored["comparedMs"] = [], poll_ms
            self._write(name, stored)
        return Compared(stored["gone"], stored["missing"])

    def _read(self, name: str) -> dict[str, Any]:
        empty = {
            "rows": {}, "taken": {}, "parts": ["", []], "listed": [], "listedMs": 0,
            "comparedMs": 0, "gone": [], "missing": [], "former": {},
        }  # fmt: skip
        return empty | (self._storage.read(_GIVEN_FOLDER, self._table, name) or {})

    def _write(self, name: str, stored: dict[str, Any]) -> None:
        self._storage.write(stored, _GIVEN_FOLDER, self._table, name)


def _by_object(owners: Iterable[str]) -> dict[str, list[str]]:
    parted: dict[str, list[str]] = {}
    for owner in owners:
        is_number = owner.isascii() and owner.isdecimal()
        name = f"{int(owner) // _OWNERS:015d}" if is_number else digest(owner)[:3]
        parted.setdefault(name, []).append(owner)
    return parted


# --- listings -------------------------------------------------------------------------------------


LISTED_ROWS_MAX: Final = 100_000
"""Rows of a table that is read by listing it: their digests take 10 MB of memory."""
VERIFIED_MAX: Final = 25
"""Rows whose deletion the source is asked to confirm, one by one, within one page."""
_LISTING_FOLDER: Final = "listing"
_DIGEST_DIGITS: Final = 24
_GONE: Final = "gone"
"""What a cursor begins with behind the listing."""


class Listing(NamedTuple):
    """How a source lists a table."""

    page: Callable[[int], tuple[Sequence[Row], int | None]]
    """Gives the rows from a place on, and the place of the next page; None after the last."""
    exists: Callable[[str], bool]
    """Returns whether a row exists."""


def read_listing(
    table: str, listing: Listing, storage: Storage, after: str, poll_ms: int
) -> SourcePage:
    """Return the changes in a page of the listing, and after its last page the deletions."""
    stored = storage.read(_LISTING_FOLDER, table) or {"rows": {}, "pollMs": 0}
    if (stored["pollMs"], stored.get("after")) != (poll_ms, after):
        rows: dict[str, list[Any]] = stored["rows"]
        if after.startswith(_GONE):
            page, following = _gone(listing, rows, after, poll_ms)
        else:
            page, following = _listed(listing, rows, int(after or 0), poll_ms)
        if len(rows) > LISTED_ROWS_MAX:
            raise AdapterRefused(f"{table} has over {LISTED_ROWS_MAX} rows: leave it out")
        stored = {
            "rows": rows, "pollMs": poll_ms, "after": after, "page": page, "next": following,
        }  # fmt: skip
        storage.write(stored, _LISTING_FOLDER, table)
    changes = tuple(Change(row_id, columns) for row_id, columns in stored["page"])
    return SourcePage(changes, stored["next"], bool(stored["next"]))


def _listed(
    listing: Listing, rows: dict[str, list[Any]], start: int, poll_ms: int
) -> tuple[list[Any], str]:
    """Compare a page of the listing; returns what changed, and the next cursor."""
    listed, following = listing.page(start)
    changed: list[Any] = []
    for row_id, columns in listed:
        text = json.dumps(columns, sort_keys=True, ensure_ascii=False)
        row_digest = hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_DIGITS]
        if rows.get(row_id, [""])[0] != row_digest:
            changed.append((row_id, columns))
        rows[row_id] = [row_digest, poll_ms]
    if following is not None:
        return changed, str(following)
    return changed, _GONE if _unlisted(rows, poll_ms) else ""


def _gone(
    listing: Listing, rows: dict[str, list[Any]], after: str, poll_ms: int
) -> tuple[list[Any], str]:
    """Ask the source for unlisted rows; returns those that are gone, and the next cursor."""
    gone: list[Any] = []
    for row_id in _unlisted(rows, poll_ms)[:VERIFIED_MAX]:
        if listing.exists(row_id):
            rows[row_id][1] = poll_ms
        else:
            del rows[row_id]
            gone.append((row_id, None))
    following = f"{_GONE}{int(after.removeprefix(_GONE) or 0) + 1}"
    return gone, following if _unlisted(rows, poll_ms) else ""


def _unlisted(rows: Mapping[str, Sequence[Any]], poll_ms: int) -> list[str]:
    return [row_id for row_id, (_, listed_ms) in rows.items() if listed_ms != poll_ms]


# --- rows of the gateway --------------------------------------------------------------------------


SLICE_ROWS_MAX: Final = 500
"""Rows of the gateway that are looked at, at a time."""


def brought_by(client_id: str, gateway: str, rows: Rows) -> TellsBrought:
    """Return a view of a gateway's rows that a client has written to."""

    def brought(table: str, place: str) -> BroughtRows:
        row_slice = rows.scan_rows(gateway, table, place, SLICE_ROWS_MAX)
        row_ids = tuple(
            row_id
            for row_id, stored in row_slice.rows
            if _is_by(decode_row_state(stored.state), client_id)
        )
        return BroughtRows(row_ids, row_slice.place)

    return brought


def _is_by(state: RowState, client_id: str) -> bool:
    return any(writer == client_id for _, writer, _ in state.columns.values())
