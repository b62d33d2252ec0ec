"""A page's contents, by table: rows of one insert by their columns, others as their deltas.

The code is optimised for pages of thousands of new rows: for such a row no delta object is made.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

from lakesync.client.storage.new_rows import Inserts
from lakesync.core.delta import Op
from lakesync.errors import InternalError
from lakesync.wire.raw_records import columns_of, delta_of, raw_records, values_alike

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lakesync.core.clock import Stamp
    from lakesync.core.delta import Delta
    from lakesync.core.messages import PullPage
    from lakesync.core.values import CanonicalJson
    from lakesync.wire import lakesync_pb2 as pb

_WRITES: Final = frozenset({Op.INSERT, Op.UPDATE})
_INSERT: Final = Op.INSERT.value


class ArrivedRows:
    """A page's deltas of one table.

    Args:
        client_id: whose file it is for.
    """

    def __init__(self, client_id: str) -> None:
        self._client_id = client_id
        self._first: dict[str, pb.RawDelta] = {}
        self._all: dict[str, list[pb.RawDelta]] = {}
        """The records of rows with several."""
        self.inserts: list[Inserts] = []
        """Rows of one insert by another client, those with the same columns together."""
        self.several: dict[str, list[Delta]] = {}
        """Rows that begin with another client's insert and continue with writes: as for `inserts`,
        these deltas may be all that ever existed of them.
        """
        self.others: dict[str, list[Delta]] = {}

    def add(self, row_id: str, record: pb.RawDelta) -> None:
        """Add the next record."""
        first = self._first.setdefault(row_id, record)
        if first is not record:
            self._all.setdefault(row_id, [first]).append(record)

    def sort(self) -> None:
        """Tell rows that may be new from others, once all records are there."""
        by_count: dict[int, list[pb.RawDelta]] = defaultdict(list)
        me, several = self._client_id, self._all
        for row_id, first in self._first.items():
            may_be_new = first.op == _INSERT and first.client_id != me
            if may_be_new and row_id not in several and (count := len(first.columns)):
                by_count[count].append(first)
                continue
            deltas = list(map(delta_of, several.get(row_id, (first,))))
            is_new = may_be_new and all(delta.op in _WRITES for delta in deltas)
            (self.several if is_new else self.others)[row_id] = deltas
        for alike in by_count.values():
            self.inserts += _inserts(alike)

    @property
    def deltas(self) -> Iterator[Delta]:
        """The deltas of rows that are not of one insert."""
        for rows in (self.several, self.others):
            for of_row in rows.values():
                yield from of_row

    @property
    def newest(self) -> Stamp:
        """The greatest stamp."""
        stamps = [max(inserts.stamps) for inserts in self.inserts]
        return max([*stamps, *[delta.hlc for delta in self.deltas]])

    @property
    def columns(self) -> set[str]:
        """The names of all columns."""
        names = {name for delta in self.deltas for name, _ in delta.columns}
        return names.union(*(inserts.names for inserts in self.inserts))

    def by_row(self) -> dict[str, list[Delta]]:
        """Return the deltas of all rows."""
        known = self.several | self.others
        return {
            row_id: known.get(row_id) or [delta_of(record)]
            for row_id, record in self._first.items()
        }


class Arrived:
    """A page's deltas by table, in the order in which it names them. Reading it needs no lock.

    Args:
        page: the page.
        client_id: whose file it is for.

    Raises:
        InternalError: the page does not hold what it counts.
    """

    def __init__(self, page: PullPage, client_id: str) -> None:
        self.tables: dict[str, ArrivedRows] = {}
        count = 0
        for run in page.records:
            for record in raw_records(run):
                count += 1
                table = record.table
                rows = self.tables.get(table)
                if rows is None:
                    rows = self.tables[table] = ArrivedRows(client_id)
                rows.add(record.row_id, record)
        if count != page.count:
            raise InternalError(
                f"the page counts {page.count} deltas and holds {count}; pull again"
            )
        for rows in self.tables.values():
            rows.sort()
        self.newest: Stamp = max((rows.newest for rows in self.tables.values()), default=0)
        """The greatest stamp; 0 if there is none."""
        deltas = (delta for rows in self.tables.values() for delta in rows.deltas)
        self.own = [delta for delta in deltas if delta.client_id == client_id]
        """The file's client's own."""


def _inserts(records: Sequence[pb.RawDelta]) -> list[Inserts]:
    """Return rows of one insert each, with as many columns, by the names of these."""
    columns = list(zip(*[tuple(record.columns) for record in records], strict=True))
    alike = [named for named in map(values_alike, columns) if named is not None]
    if len(alike) == len(columns):
        names = tuple([name for name, _ in alike])
        return [_together(names, [values for _, values in alike], records)]
    by_names: dict[tuple[str, ...], list[pb.RawDelta]] = defaultdict(list)
    rows: dict[tuple[str, ...], list[tuple[CanonicalJson, ...]]] = defaultdict(list)
    for record in records:
        names, row = columns_of(record.columns)
        by_names[names].append(record)
        rows[names].append(row)
    return [
        _together(names, list(zip(*rows[names], strict=True)), of_names)
        for names, of_names in by_names.items()
    ]


def _together(
    names: tuple[str, ...],
    values: Sequence[Sequence[CanonicalJson]],
    records: Sequence[pb.RawDelta],
) -> Inserts:
    return Inserts(
        names,
        [record.row_id for record in records],
        [record.hlc for record in records],
        [record.client_id for record in records],
        values,
    )
