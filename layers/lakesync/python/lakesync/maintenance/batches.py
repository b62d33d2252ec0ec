"""Batches: one table's deltas of some consecutive commits, and their names. Pure.

A batch is named by its content: gateway, table, and the range ``(after, last]`` of commit stamps.
``after`` is the end of the table's batch before it, so the names alone show whether one is missing.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import chain, groupby
from typing import TYPE_CHECKING, Final

from lakesync.core.claims import CLAIMS, STAGING, deliveries_of
from lakesync.core.flushing import PARQUET
from lakesync.core.names import staged_column
from lakesync.core.schema_json import schema_to_json
from lakesync.core.stored import WRITES
from lakesync.ports import BatchRow
from lakesync.wire.records import decode_records

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from lakesync.core.clock import Stamp
    from lakesync.core.schema import TableSchema
    from lakesync.ports import LogEntry


BATCH_CELLS_MAX: Final = 8_000_000
"""Rows of one batch times its columns, unless one commit alone has more: an object has a place for
each, which takes 8 bytes while it is made, however few columns each row has."""


@dataclass(frozen=True, slots=True)
class Batch:
    """One table's deltas in commit order; they cover its commits in ``(after, last]``."""

    gateway: str
    table: str
    after: Stamp
    last: Stamp
    rows: tuple[BatchRow, ...]
    columns: Mapping[str, str]
    """By column that occurs, its name in the object."""
    form: str = PARQUET
    """One of `lakesync.core.flushing.FORMATS`."""

    @property
    def range_name(self) -> str:
        """The range as it is written in keys: sorted as text, ranges sort as ranges."""
        return f"{self.after:020d}-{self.last:020d}"

    @property
    def object_key(self) -> str:
        """The key of the rows."""
        return f"{STAGING}{self.gateway}/{self.table}/{self.range_name}.{self.form}"

    @property
    def claim_key(self) -> str:
        """The key of the lake's claim: while it exists, the batch waits to be materialised."""
        return f"{CLAIMS}{self.gateway}/{self.table}/{self.range_name}.json"

    def delivery_key(self, destination: str) -> str:
        """Return the key of the claim of a declared destination."""
        return f"{deliveries_of(self.gateway, destination, self.table)}{self.range_name}.json"

    def claim(self, schema: TableSchema | None, size_bytes: int) -> str:
        """Return the claim: everything that must be known to apply the batch."""
        body = {
            "version": WRITES,
            "gateway": self.gateway,
            "table": self.table,
            "after": str(self.after),
            "last": str(self.last),
            "object": self.object_key,
            "deltas": len(self.rows),
            "bytes": size_bytes,
            "append": bool(schema and schema.append),
            "schema": schema_to_json(schema) if schema else None,
            "columns": dict(self.columns),
        }
        return json.dumps(body, sort_keys=True)


def rows_of(entries: Iterable[LogEntry]) -> dict[str, list[BatchRow]]:
    """Return the rows of entries in commit order, by table, tables in order of name."""
    rows: dict[str, list[BatchRow]] = {}
    for stamp, commit in groupby(entries, key=lambda entry: entry.stamp):
        # Ordinals are consecutive over the commit's shards, so that they are unique in a table that
        # moved.
        deltas = chain.from_iterable(decode_records(entry.records) for entry in commit)
        for ordinal, delta in enumerate(deltas):
            row = BatchRow(
                stamp,
                ordinal,
                delta.op.name,
                delta.row_id,
                delta.client_id,
                delta.hlc,
                delta.delta_id,
                delta.columns,
            )
            rows.setdefault(delta.table, []).append(row)
    return dict(sorted(rows.items()))


def batches(
    gateway: str, table: str, rows: Iterable[BatchRow], after: Stamp, form: str = PARQUET
) -> Iterator[Batch]:
    """Cut a table's rows, in commit order, into batches that follow each other.

    Each has whole commits, as many as `BATCH_CELLS_MAX` allows: the same rows are always cut at the
    same places.

    Args:
        gateway: whose.
        table: the table.
        rows: its rows of one range.
        after: where its batch before them ended; 0 if there was none.
        form: how their objects are written.
    """
    taken: list[BatchRow] = []
    columns: set[str] = set()
    for _, commit in groupby(rows, key=lambda row: row.commit):
        more = list(commit)
        names = {name for row in more for name, _ in row.columns}
        if taken and (len(taken) + len(more)) * len(columns | names) > BATCH_CELLS_MAX:
            yield _batch(gateway, table, after, taken, columns, form)
            after, taken, columns = taken[-1].commit, [], set()
        taken += more
        columns |= names
    if taken:
        yield _batch(gateway, table, after, taken, columns, form)


def _batch(
    gateway: str, table: str, after: Stamp, rows: Sequence[BatchRow], columns: Iterable[str],
    form: str,
) -> Batch:  # fmt: skip
    names = {name: staged_column(name) for name in sorted(columns)}
    return Batch(gateway, table, after, rows[-1].commit, tuple(rows), names, form)
