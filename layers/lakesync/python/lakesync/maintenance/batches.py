"""What a batch is: one table's deltas of one range of commits, and its name. Pure.

A batch is named by its content: gateway, table, and the range ``(after, last]`` of commit stamps.
``after`` is the end of the table's batch before it, so the names alone tell whether one is missing.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import chain, groupby
from typing import TYPE_CHECKING

from lakesync.core.names import lake_column
from lakesync.core.schema import schema_to_json
from lakesync.ports import BatchRow
from lakesync.wire.records import decode_records

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from lakesync.core.clock import Stamp
    from lakesync.core.schema import TableSchema
    from lakesync.ports import LogEntry


@dataclass(frozen=True, slots=True)
class Batch:
    """One table's deltas in commit order; they cover its commits in ``(after, last]``."""

    gateway: str
    table: str
    after: Stamp
    last: Stamp
    rows: tuple[BatchRow, ...]
    columns: Mapping[str, str]
    """The lake's name of each column that occurs."""

    @property
    def range_name(self) -> str:
        """The range, as it stands in keys: sorted as text, ranges sort as ranges."""
        return f"{self.after:020d}-{self.last:020d}"

    @property
    def object_key(self) -> str:
        """Where the rows are."""
        return f"staging/{self.gateway}/{self.table}/{self.range_name}.parquet"

    @property
    def claim_key(self) -> str:
        """Where the claim is: the batch waits to be materialised while it exists."""
        return f"claims/{self.gateway}/{self.table}/{self.range_name}.json"

    def claim(self, schema: TableSchema | None, size_bytes: int) -> str:
        """Give the claim: all that the materialiser must know of the batch."""
        body = {
            "version": 1,
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
        # ASCII: a queue refuses some characters that a schema's text may hold.
        return json.dumps(body, sort_keys=True)


def batches(gateway: str, entries: Iterable[LogEntry], last_of: Mapping[str, Stamp]) -> list[Batch]:
    """Split a range of the log, in commit order, into one batch for each table."""
    rows: dict[str, list[BatchRow]] = {}
    in_order = sorted(entries, key=lambda entry: entry.stamp)
    for stamp, commit in groupby(in_order, key=lambda entry: entry.stamp):
        # Ordinals run on through the commit's shards, so that they are unique in a laned table.
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
    return [
        Batch(
            gateway,
            table,
            last_of.get(table, 0),
            held[-1].commit,
            tuple(held),
            {
                name: lake_column(name)
                for name in sorted({name for row in held for name, _ in row.columns})
            },
        )
        for table, held in sorted(rows.items())
    ]
