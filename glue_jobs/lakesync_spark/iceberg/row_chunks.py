"""Writes rows of a state table as chunks of a checkpoint, on the workers that read the rows.

This transform runs Python. A chunk is protobuf for clients, with a digest of every delta, which
column expressions cannot compute; and it must equal the gateway's chunks byte for byte. So the
gateway's own encoder runs here, on batches of rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from lakesync.checkpoint.store import Chunk, ChunkWriter, Part, Tombstones, put_chunk
from lakesync.core.merge import RowState
from lakesync.materialise.lake_schema import ID
from lakesync.ports import StoredRow
from lakesync.wire.records import encode_row_state
from lakesync_spark.common.queries import asked
from lakesync_spark.iceberg.state import registers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame, Row

    from lakesync.checkpoint.store import Cut
    from lakesync.materialise.lake_schema import LakeColumn
    from lakesync.ports import ObjectStore

_INDEX: Final = (
    "number INT, key STRING, size BIGINT, sha256 STRING, parts ARRAY<ARRAY<INT>>,"
    " tombstones BIGINT, oldest BIGINT"
)
_CHUNKS_PER_PARTITION: Final = 100_000
"""What numbers of chunks leave for those of one partition of rows."""


class Written(NamedTuple):
    number: int
    """Its place among those of the table, with gaps."""
    chunk: Chunk
    tombstones: Tombstones


@dataclass(frozen=True, slots=True)
class Destination:
    """Where the chunks of a table go. Sent to whoever reads the rows."""

    objects: Callable[[], ObjectStore]
    gateway: str
    checkpoint: str
    table: str
    chunk_bytes: int


def write_chunks(
    rows: DataFrame, columns: Sequence[LakeColumn], to: Destination
) -> Iterator[Written]:
    """Write all rows of a state table as chunks, and give these in order. Safe to repeat.

    A repeated task writes the same bytes under the same names. Cost: one chunk in memory
    for each task, and 40 us a row of five columns.
    """
    names = tuple(column.written for column in columns)

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return _written(batches, names, to)

    # In the order of ids, from one chunk to the next: so clients write their tables.
    ordered = asked(rows, lambda view: registers(view, columns)).orderBy(ID)
    index = ordered.mapInArrow(write, _INDEX)
    return map(_from_index, sorted(index.collect(), key=lambda row: row["number"]))


def _from_index(row: Row) -> Written:
    parts = tuple(Part(*numbers) for numbers in row["parts"])
    chunk = Chunk(row["key"], row["size"], row["sha256"], parts)
    return Written(row["number"], chunk, Tombstones(row["tombstones"], row["oldest"]))


# --- where the rows are read ----------------------------------------------------------------------


def _written(
    batches: Iterable[pa.RecordBatch], names: Sequence[str], to: Destination
) -> Iterator[pa.RecordBatch]:
    """Write the chunks of one partition; returns a line of the index for each."""
    number = _partition() * _CHUNKS_PER_PARTITION
    objects = to.objects()
    writer = ChunkWriter(to.table, to.chunk_bytes, Tombstones())
    for cut in _cuts(batches, names, writer):
        chunk = put_chunk(objects, (to.gateway, to.checkpoint), to.table, number, cut)
        yield _line(Written(number, chunk, writer.tombstones))
        number += 1
        writer.tombstones = Tombstones()


def _partition() -> int:
    from pyspark import TaskContext  # noqa: PLC0415 - there is one only here

    task = TaskContext.get()
    return task.partitionId() if task else 0


def _cuts(
    batches: Iterable[pa.RecordBatch], names: Sequence[str], writer: ChunkWriter
) -> Iterator[Cut]:
    for batch in batches:
        yield from writer.add(_rows(batch, names))
    yield from writer.rest()


def _rows(batch: pa.RecordBatch, names: Sequence[str]) -> Iterator[tuple[str, StoredRow]]:
    ids, alive, deleted = (batch.column(index).to_pylist() for index in range(3))
    by_column = [
        (name, *(part.to_pylist() for part in batch.column(index).flatten()))
        for index, name in enumerate(names, start=3)
    ]
    for index, row_id in enumerate(ids):
        written = {
            name: (hlcs[index], clients[index], texts[index].encode())
            for name, hlcs, clients, texts in by_column
            if hlcs[index] is not None
        }
        state = encode_row_state(RowState(alive[index], deleted[index], written))
        yield row_id, StoredRow(state, 0)


def _line(written: Written) -> pa.RecordBatch:
    import pyarrow as pa  # noqa: PLC0415 - only tasks need it

    number, chunk, tombstones = written
    schema = pa.schema({
        "number": pa.int32(), "key": pa.string(), "size": pa.int64(), "sha256": pa.string(),
        "parts": pa.list_(pa.list_(pa.int32())),
        "tombstones": pa.int64(), "oldest": pa.int64(),
    })  # fmt: skip
    line = {
        "number": number, "key": chunk.key, "size": chunk.size, "sha256": chunk.sha256,
        "parts": [list(part) for part in chunk.parts],
        "tombstones": tombstones.count, "oldest": tombstones.oldest,
    }  # fmt: skip
    return pa.RecordBatch.from_pylist([line], schema)
