"""Batches as Parquet: each synced column is one column of canonical JSON text.

An absent column is a Parquet null; a JSON null is the text ``null``. Typing is the materialiser's
task, which alone knows the table's schema at the time. ``_order`` lists a delta's columns if its
client did not send them sorted by name: so the delta is read back unchanged, and its id stays
valid. The object's metadata maps its columns to their names on the wire, so it is readable without
its claim.
"""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from lakesync.adapters.database import PlacedDelta, Position
from lakesync.core.delta import Op, known_delta
from lakesync.errors import ValidationFailed
from lakesync.wire.batch_json import columns_of, decode_batch, is_envelope

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from lakesync.core.deliveries import Batch
    from lakesync.core.delta import Columns
    from lakesync.ports import BatchRow

_ORDER = "_order"
_COLUMNS = b"lakesync.columns"

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
        """Return the object; the same rows give the same bytes."""
        sink = io.BytesIO()
        pq.write_table(_table(rows, columns), sink, compression="zstd")
        return sink.getvalue()


def batch_table(body: bytes, *, use_threads: bool = True) -> pa.Table:
    """Return the object of a batch as a table, whether it is Parquet or JSON.

    Raises:
        ValidationFailed: it is neither, or is damaged.
    """
    if is_envelope(body):
        rows = decode_batch(body)
        return _table(rows, columns_of(rows))
    try:
        return pq.read_table(io.BytesIO(body), use_threads=use_threads)
    except (pa.ArrowException, OSError) as exc:  # OSError: a damaged page
        raise ValidationFailed(str(exc), field="object") from exc


def _table(rows: Sequence[BatchRow], columns: Mapping[str, str]) -> pa.Table:
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
    # Canonical JSON is always UTF-8, so the bytes are text as they are.
    arrays += [pa.array(column, type=pa.binary()).cast(pa.string()) for column in values.values()]
    arrays.append(pa.array(map(_order, rows), type=pa.string()))
    fields = [*_SYSTEM, *(pa.field(columns[name], pa.string()) for name in values)]
    fields.append(pa.field(_ORDER, pa.string()))
    named = {_COLUMNS: json.dumps(dict(columns), sort_keys=True).encode()}
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields, metadata=named))


def read_batch(body: bytes, batch: Batch) -> list[PlacedDelta]:
    """Return the deltas of a batch, whole and unchanged, in commit order.

    Raises:
        ValidationFailed: the object was not written for this batch, or is damaged.
    """
    try:
        return list(_deltas(batch_table(body), batch))
    except (ValidationFailed, pa.ArrowException, KeyError, ValueError) as exc:
        raise ValidationFailed(f"the object {batch.object_key} cannot be read: {exc}") from exc


def _deltas(table: pa.Table, batch: Batch) -> Iterable[PlacedDelta]:
    system = [table.column(field.name).to_pylist() for field in _SYSTEM]
    orders = table.column(_ORDER).to_pylist()
    columns_of = _columns(table, batch)
    names = list(columns_of)
    values = [
        table.column(lake_name).cast(pa.binary()).to_pylist() for lake_name in columns_of.values()
    ]
    for at, (commit, ordinal, op, row_id, client_id, hlc, _) in enumerate(
        zip(*system, strict=True)
    ):
        columns = [
            (name, column[at])
            for name, column in zip(names, values, strict=True)
            if column[at] is not None
        ]
        delta = known_delta(
            Op[op], batch.table, row_id, client_id, hlc, _ordered(columns, orders[at])
        )
        yield PlacedDelta(Position(commit, ordinal), delta)


def _columns(table: pa.Table, batch: Batch) -> dict[str, str]:
    """Return each column's name in the object by its name on the wire, sorted."""
    declared = (table.schema.metadata or {}).get(_COLUMNS)
    return dict(sorted(json.loads(declared).items())) if declared else dict(batch.columns)


def _order(row: BatchRow) -> str | None:
    """Return the names of a delta's columns, if they are not sorted."""
    names = [name for name, _ in row.columns]
    return None if names == sorted(names) else ",".join(names)


def _ordered(columns: Sequence[tuple[str, bytes]], order: str | None) -> Columns:
    if order is None:
        return tuple(columns)
    of = dict(columns)
    return tuple((name, of[name]) for name in order.split(","))
