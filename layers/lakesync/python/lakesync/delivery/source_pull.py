"""Pulls from a source: a declared destination's database, by the sync rules of the gateway.

A client reads each table's rows, then its history. Visibility is decided by the row, and a history
does not show what a row was before. So where rules hide some rows of a table, its rows are read
again after any change in it, and rows that are no longer visible are missing from the answer.
Laws D13, D14: ``docs/spec/delivery.md``, V12: ``docs/spec/visibility.md``.

How far a client has read the tables is an opaque text, which it hands back. Its length is bounded,
as it is part of a request's address: a table is a digest of its name.
"""

from __future__ import annotations

import base64
import hashlib
import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from lakesync.adapters.database import ORDINAL_END, Position
from lakesync.core.clock import STAMP_MAX, stamp
from lakesync.core.delta import ROW_ID_BYTES_MAX
from lakesync.core.messages import PullPage, Resync, begins
from lakesync.core.visibility import NOTHING
from lakesync.errors import (
    AdapterFailed,
    AdapterRefused,
    CursorExpired,
    NotFound,
    SourceUnavailable,
    ValidationFailed,
)
from lakesync.gateway.filtered_reads import Budget, RuleFilter
from lakesync.result import Err
from lakesync.wire.records import encode_records

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from lakesync.adapters.database import DatabaseAdapter
    from lakesync.core.clock import Stamp
    from lakesync.core.delta import Delta
    from lakesync.core.destinations import Destination
    from lakesync.core.messages import Pull
    from lakesync.ports import Buffer, WallClock

    OpenDatabase = Callable[[str, Destination], DatabaseAdapter]

# --- how far a client has read --------------------------------------------------------------------


TABLES_MAX: Final = 150
"""Tables of a source: the progress of each is in every request, and API Gateway allows 10 KB."""
_DIGEST_BYTES: Final = 8
_SOURCE: Final = 6
_TABLE: Final = struct.Struct(">8s4sQIH")
_NOT_OURS: Final = "snapshot must be empty, begin, or that of the page before"


class TableKey(NamedTuple):
    """A table, and what decides on its rows for the client."""

    table: bytes
    scope: bytes


class TablePlace(NamedTuple):
    """How far a table was read: its rows up to one of them, or its history."""

    commit: Stamp
    """The commit reached in its history; while rows are read, the mark that they include at least.
    """
    ordinal: int = ORDINAL_END
    row_id: str | None = None
    """The last row that was read; None once all are."""


def table_key(table: str, digest: str) -> TableKey:
    return TableKey(_digest(table)[:_DIGEST_BYTES], _digest(digest)[:4])


def places_text(source: Destination, places: Mapping[TableKey, TablePlace]) -> str:
    """Return the text that a client hands for its next page."""
    parts = [_source(source)]
    for key, place in places.items():
        row = b"" if place.row_id is None else place.row_id.encode()
        size = 0 if place.row_id is None else len(row) + 1
        parts += [_TABLE.pack(*key, place.commit, place.ordinal + 1, size), row]
    return base64.urlsafe_b64encode(b"".join(parts)).decode().rstrip("=")


def places_of(source: Destination, text: str) -> dict[TableKey, TablePlace]:
    """Read what `places_text` gave.

    Raises:
        ValidationFailed: it is malformed.
        CursorExpired: its source was declared again since.
    """
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), b"-_", validate=True)
        named, places = data[:_SOURCE], _read(data[_SOURCE:])
    except (ValueError, struct.error) as exc:
        raise ValidationFailed(_NOT_OURS, field="snapshot") from exc
    if named != _source(source):
        raise CursorExpired(
            f"the source {source.name} is not the one that this page came from; begin again, "
            "without a snapshot",
            field="snapshot",
        )
    return places


def _read(data: bytes) -> dict[TableKey, TablePlace]:
    places: dict[TableKey, TablePlace] = {}
    at = 0
    while at < len(data):
        table, scope, commit, ordinal, size = _TABLE.unpack_from(data, at)
        at += _TABLE.size
        row = None if not size else data[at : at + size - 1].decode()
        at += max(size - 1, 0)
        if commit > STAMP_MAX or at > len(data) or size > ROW_ID_BYTES_MAX + 1:
            raise ValueError("no place of ours")
        places[TableKey(table, scope)] = TablePlace(commit, ordinal - 1, row)
    return places


def _source(source: Destination) -> bytes:
    """Distinguish declarations: another one of the same name contains other rows."""
    return _digest(f"{source.name}|{source.declared_ms}")[:_SOURCE]


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


# --- pulls ----------------------------------------------------------------------------------------


ROWS_READ_MAX: Final = 250
"""Rows that are read at a time: nearly always at most 1 MB, although one may take 380 KB."""
HISTORY_READ_MAX: Final = 1_000
"""Deltas of a history that are read at a time."""


class SourcePulls:
    """Answers pulls from sources for any gateway. One for each process; one request at a time.

    Args:
        open_database: opens the database of a declared destination.
    """

    def __init__(
        self, buffer: Buffer, open_database: OpenDatabase, *, wall_clock: WallClock
    ) -> None:
        self._buffer = buffer
        self._open_database = open_database
        self._wall_clock = wall_clock

    def pull(self, gateway: str, pull: Pull) -> PullPage:
        """Return the next page of a source. Idempotent.

        Cost: two reads of the database, and one or two for each table; more while rows are read.

        Raises:
            NotFound: no such source is declared for the gateway.
            CursorExpired: the page before is from another source; begin again.
            ValidationFailed: the request asks for something that does not exist.
            SourceUnavailable: the database is down, slow or locked; try again later.
            AdapterRefused: it refuses the credentials.
        """
        source = self._buffer.destinations(gateway).by_name.get(pull.source)
        if source is None:
            raise NotFound(
                f"there is no source {pull.source[:40]!r}: a gateway's sources are its declared "
                "destinations, and its administrator lists them",
                field="source",
            )
        if source.maps:
            # Rules name the gateway's columns: with other columns they would show what they hide.
            raise ValidationFailed(
                f"{source.name} has other columns than the gateway, by which no rule decides; pull "
                "from the gateway",
                field="source",
            )
        if pull.since and not pull.snapshot:
            raise ValidationFailed(
                "pages of a source go on from `snapshot` of the page before, not from `since`",
                field="since",
            )
        try:
            database = self._opened(gateway, source)
            try:
                return self._page(gateway, source, database, pull)
            finally:
                database.close()
        except AdapterRefused:
            raise
        except AdapterFailed as error:
            raise SourceUnavailable(error.message) from error

    def _opened(self, gateway: str, source: Destination) -> DatabaseAdapter:
        try:
            return self._open_database(gateway, source)
        except ValidationFailed as error:
            # The content of the secret is at fault, not the client's request.
            raise AdapterRefused(f"the source {source.name}: {error.message}") from error

    def _page(
        self, gateway: str, source: Destination, database: DatabaseAdapter, pull: Pull
    ) -> PullPage:
        config = self._buffer.config(gateway)
        reading = _Reading(database, RuleFilter(config, pull), pull, Budget(self._wall_clock))
        reading.go_on(source)
        return PullPage(
            tuple(reading.page.runs),
            reading.page.count,
            stamp(self._wall_clock()),
            has_more=reading.page.is_cut,
            snapshot=places_text(source, reading.places),
            resync=Resync(tuple(sorted(reading.resync))) if reading.resync else None,
            schema_version=config.schema_version,
        )


class _Reading:
    """One page, while it is read."""

    def __init__(
        self, database: DatabaseAdapter, rule_filter: RuleFilter, pull: Pull, budget: Budget
    ) -> None:
        self._database = database
        self._filter = rule_filter
        self._snapshot = pull.snapshot
        self._budget = budget
        self.page = SourcePage(pull.deltas_max, pull.bytes_max)
        self.places: dict[TableKey, TablePlace] = {}
        self.resync: set[str] = set()

    def go_on(self, source: Destination) -> None:
        """Continue each table where the page before ended, those that waited longest first."""
        tables = [name for name in self._database.tables().unwrap() if source.wants(name)]
        if len(tables) > TABLES_MAX:
            raise ValidationFailed(
                f"this source has {len(tables)} tables, and {TABLES_MAX} can be pulled: let the "
                "administrator declare one with fewer",
                field="source",
            )
        begun = bool(self._snapshot) and not begins(self._snapshot)
        self.places = {**places_of(source, self._snapshot)} if begun else {}
        keys = {table_key(name, self._filter.scope.of(name)): name for name in tables}
        self._forget_changed(tables)
        visible = [name for name in tables if self._filter.scope.of(name) != NOTHING]
        known = [keys[key] for key in self.places]
        for name in [*(one for one in visible if one not in known), *known]:
            if self.page.is_cut or not self.page.room:
                self.page.is_cut = True
                return
            self._visit(name)

    def _forget_changed(self, tables: Sequence[str]) -> None:
        """Have those tables read again for which rules or token claims decide differently now."""
        by_digest = {table_key(name, "").table: name for name in tables}
        for key in list(self.places):
            name = by_digest.get(key.table)
            if name is None:
                raise CursorExpired(
                    "a table of this source is gone; begin again, without a snapshot",
                    field="snapshot",
                )
            if key != table_key(name, self._filter.scope.of(name)):
                del self.places[key]
                self.resync.add(name)

    def _visit(self, name: str) -> None:
        key = table_key(name, self._filter.scope.of(name))
        place = self.places.pop(key, None)
        if place and place.row_id is None:
            place = self._follow(name, place)
            if place is None:
                self.resync.add(name)
        was_begun = place is not None
        place = place or self._begin(name)
        if place and place.row_id is not None:
            place, reads = self._rows(name, place)
            if place.row_id is None and (was_begun or reads > 1):
                place = self._changed_meanwhile(name, place)
        if place:
            self.places[key] = place  # behind the others: the next page begins with them

    def _begin(self, name: str) -> TablePlace | None:
        """Get where a table's rows begin; None while the destination is being filled with them."""
        place = TablePlace(self._database.mark(name).unwrap(), row_id="")
        if not place.commit:
            return None
        if self._filter.viewer.sees_rows_of(name):
            behind = self._database.query_deltas_since(name, Position(*place[:2]), 1)
            if isinstance(behind, Err) and isinstance(behind.error, CursorExpired):
                return None
        return place

    def _follow(self, name: str, place: TablePlace) -> TablePlace | None:
        """Continue a table's history; None if its rows have to be read again."""
        if not self._filter.viewer.sees_rows_of(name):
            mark = self._database.mark(name).unwrap()
            return place if mark in {0, place.commit} else None  # 0: it is being filled again
        has_more, is_first = True, True
        while has_more and not self.page.is_cut:
            if not is_first and not self._budget.allows_read():
                self.page.is_cut = True  # many of them may be left out
                break
            wanted = max(1, min(HISTORY_READ_MAX, self.page.room))
            answer = self._database.query_deltas_since(name, Position(*place[:2]), wanted)
            if isinstance(answer, Err) and isinstance(answer.error, CursorExpired):
                if is_first:
                    return None
                self.page.is_cut = True  # the next page begins here, and has the rows read again
                break
            page = answer.unwrap()
            for position, delta in page.deltas:
                if not self.page.add(self._filter.shown([delta])):
                    break
                place = TablePlace(position.commit, position.ordinal)
            else:
                place = TablePlace(*page.position)
            has_more, is_first = page.has_more, False
            if has_more and not self.page.room:
                self.page.is_cut = True
        return place

    def _changed_meanwhile(self, name: str, place: TablePlace) -> TablePlace:
        """Continue with what changed while rows were read, as rows of earlier pages lack it."""
        followed = self._follow(name, place)
        if followed is None:
            self.page.is_cut = True  # the next page has the rows read again
            return place
        return followed

    def _rows(self, name: str, place: TablePlace) -> tuple[TablePlace, int]:
        """Continue a table's rows, as the client sees them; returns how often it was read, too."""
        row_id, has_more, reads = place.row_id or "", True, 0
        while has_more:
            if not self._budget.allows_read():
                self.page.is_cut = True
                return place._replace(row_id=row_id), reads
            reads += 1
            page = self._database.rows_after(name, row_id, ROWS_READ_MAX).unwrap()
            for row, state in page.rows.items():
                deltas = self._filter.row(name, row, state)
                if deltas and not self.page.add(deltas):
                    return place._replace(row_id=row_id), reads
                row_id = row
            has_more = page.has_more
        return place._replace(row_id=None), reads


# --- a page ---------------------------------------------------------------------------------------


class SourcePage:
    """Deltas up to a count and a size; the first always fits, whatever its size.

    Args:
        deltas_max: how many, except that rows are never cut.
        bytes_max: the most bytes that they may take in stored form.
    """

    def __init__(self, deltas_max: int, bytes_max: int) -> None:
        self._deltas_max = deltas_max
        self._bytes_max = bytes_max
        self._size = 0
        self.runs: list[bytes] = []
        self.count = 0
        self.is_cut = False
        """Whether something is left for the next page."""

    @property
    def room(self) -> int:
        """Return how many more deltas are wanted."""
        return max(0, self._deltas_max - self.count)

    def add(self, deltas: Sequence[Delta]) -> bool:
        """Add deltas that belong together; False, and the page is cut, if they do not fit."""
        run = encode_records(deltas)
        too_large = self._size + len(run) > self._bytes_max
        if self.count and (too_large or not self.room):
            self.is_cut = True
            return False
        self.runs.append(run)
        self.count += len(deltas)
        self._size += len(run)
        return True
