"""Batches as Parquet: one column for each column that occurs, as canonical JSON text.

An absent column is a Parquet null; a JSON null is the text ``null``. Types are the materialiser's:
it alone knows the table's schema at the time.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lakesync.ports import BatchRow

_SYSTEM = pa.schema(
    [
        pa.field("_commit", pa.int64(), nullable=False),
        pa.field("_ordinal", pa.int32(), nullable=False),
        pa.field("_op", pa.string(), nullable=False),
        pa.field("_row_id", pa.string(), nullable=False),
        pa.field("_client_id", pa.string(), nullable=False),
        pa.field("_hlc", pa.int64(), nullable=False),
        pa.field("_delta_id", pa.string(), nullable=False),
    ]
)


class ParquetEncoder:
    """`lakesync.ports.BatchEncoder` as Parquet, zstd inside."""

    def encode(self, rows: Sequence[BatchRow], columns: Mapping[str, str]) -> bytes:
        """Give the object; the same rows give the same bytes."""
        values: dict[str, list[bytes | None]] = {name: [None] * len(rows) for name in columns}
        for index, row in enumerate(rows):
            for name, value in row.columns:
                values[name][index] = value
        system = [
            [row.commit for row in rows],
            [row.ordinal for row in rows],
            [row.op for row in rows],
            [row.row_id for row in rows],
            [row.client_id for row in rows],
            [row.hlc for row in rows],
            [row.delta_id for row in rows],
        ]
        arrays = [
            pa.array(column, type=field.type) for column, field in zip(system, _SYSTEM, strict=True)
        ]
        # Canonical JSON is UTF-8 by construction, so the bytes are text as they stand.
        arrays += [
            pa.array(column, type=pa.binary()).cast(pa.string()) for column in values.values()
        ]
        fields = [*_SYSTEM, *(pa.field(columns[name], pa.string()) for name in values)]
        table = pa.Table.from_arrays(arrays, schema=pa.schema(fields))
        sink = io.BytesIO()
        pq.write_table(table, sink, compression="zstd")
        return sink.getvalue()
