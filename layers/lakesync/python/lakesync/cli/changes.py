"""A table's deltas in commit order: what the lake's changes table holds, then the log's last part.

The lake keeps every delta that ever changed a register, for as long as the table is kept: no
snapshot has to be there. What it has not taken yet is read from the buffer, behind the lake's mark
and up to what is final, so that each commit counts once. Law H1: ``docs/spec/history.md``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from lakesync.adapters.database import PlacedDelta, Position
from lakesync.cli.faults import UsageFault
from lakesync.cli.lake import declared_columns, history
from lakesync.core.delta import Op, known_delta
from lakesync.core.layout import MAIN_LANE
from lakesync.core.names import CHANGES_SUFFIX, folded
from lakesync.log.final_log import read_all
from lakesync.log.read_barrier import ReadBarrier
from lakesync.materialise.shape import delete_wins
from lakesync.materialise.staged import carried
from lakesync.ports import NO_HEAD
from lakesync.wire.records import decode_records

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import pyarrow as pa

    from lakesync.cli.lake import Lake
    from lakesync.core.clock import Stamp
    from lakesync.core.delta import Delta
    from lakesync.ports import Buffer

ROW_DELTAS_MAX: Final = 1_000_000
"""The maximum number of deltas of one row that are read."""
TAIL_DELTAS_MAX: Final = 1_000_000
"""The maximum number of deltas of the log that are read: more must reach the lake first."""
_SLICE_DELTAS_MAX: Final = 10_000
_HEAD: Final = ("_commit", "_ordinal", "_op", "_id", "_client_id", "_hlc", "_columns", "_texts")


@dataclass(frozen=True)
class Tail:
    """The part of the log behind the lake's mark."""

    deltas: tuple[PlacedDelta, ...] = ()
    """The deltas, in commit order."""
    until: Stamp = 0
    """Everything up to this commit was read."""
    trimmed: Stamp = 0
    """Up to this commit the log may be trimmed, so it must be in the lake."""
    tables: frozenset[str] = frozenset()
    """The gateway's tables."""
    delete_wins: frozenset[str] = frozenset()
    """The delete-wins tables among them."""


def read_tail(
    buffer: Buffer, gateway: str, after: Stamp, wants: Callable[[Delta], bool] = lambda _: True
) -> Tail:
    """Return the deltas that were committed after a stamp.

    Args:
        buffer: stores the log.
        gateway: whose.
        after: the lake's mark.
        wants: which deltas.

    Raises:
        UsageFault: there are too many.
        LakeSyncError: the log cannot be read now.
    """
    log = ReadBarrier(buffer).raise_heads(gateway, after)
    placed: list[PlacedDelta] = []
    for entry in read_all(buffer, log, (after, log.top), _SLICE_DELTAS_MAX):
        for ordinal, delta in enumerate(decode_records(entry.records)):
            if wants(delta):
                placed.append(PlacedDelta(Position(entry.stamp, ordinal), delta))
        if len(placed) > TAIL_DELTAS_MAX:
            raise UsageFault(
                f"more than {TAIL_DELTAS_MAX:,} deltas are not in the lake yet: "
                "run `lakesync flush --wait` first"
            )
    placed.sort(key=lambda each: each.position)
    trimmed = log.heads.get(MAIN_LANE, NO_HEAD).trimmed
    tables = frozenset((*log.config.schemas, *log.config.tables))
    delete_wins = frozenset(filter(log.config.delete_wins, tables))
    return Tail(tuple(placed), log.top, trimmed, tables, delete_wins)


class LakeChanges:
    """The deltas of one table in the lake."""

    def __init__(self, lake: Lake, table: str) -> None:
        self.table = _spelled(lake, table)
        """The table's name on the wire."""
        name = f"{self.table}{CHANGES_SUFFIX}"
        names = lake.names()
        self._table = lake.table(name) if name in names else None
        if self._table is None and self.table in names:
            events = lake.table(self.table)
            self._table = events if events.properties.get("lakesync.kind") == "events" else None
        self.is_append = name not in names and self._table is not None
        """Whether it is an append table: each delta is one row, never changed."""
        moments = [] if self._table is None else history(self._table)
        self.until: Stamp = moments[-1].applied if moments else 0
        """Everything up to this commit is in the lake."""

    def delete_wins(self, tail: Tail | None) -> bool:
        """Return whether the table is a delete-wins table, by the lake or by the log."""
        if self._table is not None and delete_wins(self._table.properties):
            return True
        return tail is not None and self.table in tail.delete_wins

    @property
    def exists(self) -> bool:
        """Whether the lake has the table."""
        return self._table is not None

    @property
    def columns(self) -> Mapping[str, tuple[str, str]]:
        """The table's columns by their names in the lake: type, and name on the wire."""
        return {} if self._table is None else declared_columns(self._table)

    def of_row(self, row_id: str) -> list[PlacedDelta]:
        """Return all deltas of a row, in commit order; file statistics decide which files are read.

        Raises:
            UsageFault: there are too many.
        """
        from pyiceberg.expressions import EqualTo

        placed: list[PlacedDelta] = []
        make: Any = EqualTo  # its own type knows nothing of positions
        for batch in self.scan(make("_id", row_id)):
            placed += self.placed(batch)
            if len(placed) > ROW_DELTAS_MAX:
                raise UsageFault(
                    f"the row has more than {ROW_DELTAS_MAX:,} deltas: "
                    f"ask with `lakesync query … --changes` for some of them"
                )
        return sorted(placed, key=lambda each: each.position)

    def scan(self, rows: Any, only: tuple[str, ...] | None = None) -> Iterator[pa.RecordBatch]:
        """Yield rows of the table, as `reader` does; none if there is no table."""
        yield from self.reader(rows, only) or ()

    def reader(self, rows: Any, only: tuple[str, ...] | None = None) -> pa.RecordBatchReader | None:
        """Return the table's rows, unordered, file by file; None if there is no table.

        Args:
            rows: a filter expression of PyIceberg.
            only: the columns; None for all that deltas need.
        """
        if self._table is None:
            return None
        fields = {field.name for field in self._table.schema().fields}
        wanted = only or tuple(name for name in (*_HEAD, *self.columns) if name in fields)
        return self._table.scan(rows, selected_fields=wanted).to_arrow_batch_reader()

    def placed(self, batch: pa.RecordBatch | pa.Table) -> Iterator[PlacedDelta]:
        """Yield the table's rows as deltas."""
        columns = self.columns
        for row in batch.to_pylist():
            delta = known_delta(
                Op[row.get("_op", Op.INSERT.name)],
                self.table,
                row["_id"],
                row["_client_id"],
                row["_hlc"],
                tuple(sorted(carried(row, columns))),
            )
            yield PlacedDelta(Position(row["_commit"], row["_ordinal"]), delta)


def _spelled(lake: Lake, table: str) -> str:
    """Return a table's name as it is spelled in the lake; unchanged if it is not there."""
    names = (name.removesuffix(CHANGES_SUFFIX) for name in lake.names())
    return next((name for name in names if folded(name) == folded(table)), table)
