"""Reads staged batches from S3."""

from __future__ import annotations

import io
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as sf

from lakesync.errors import ValidationFailed
from lakesync.wire.batch_json import columns_of, decode_batch, is_envelope

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from lakesync.core.clock import Stamp
    from lakesync.materialise.work_queue import Link
    from lakesync.ports import BatchRow

_SYSTEM: Final = {
    "_commit": "BIGINT",
    "_ordinal": "INT",
    "_op": "STRING",
    "_row_id": "STRING",
    "_client_id": "STRING",
    "_hlc": "BIGINT",
    "_delta_id": "STRING",
}
_JSON: Final = ".json"
_ARROW: Final = {"BIGINT": "int64", "INT": "int32", "STRING": "string"}


def read_deltas(
    spark: SparkSession,
    root: str,
    links: Sequence[Link],
    names: Mapping[str, str],
    applied: Stamp,
) -> DataFrame:
    """Return the deltas of a chain above a commit; each commit once, however batches overlap.

    Args:
        root: where object keys begin, as ``s3://bucket``.
        names: the columns, by their lake names, and their names in the objects; one that an object
            lacks is NULL there.
        applied: commits at or below it are left out.
    """
    # Given, not read from each file's footer.
    types = {**_SYSTEM, **dict.fromkeys(names.values(), "STRING")}
    schema = ", ".join(f"`{name}` {kind}" for name, kind in types.items())
    above = [link for link in links if link.batch.last > applied]
    floors = [
        (f"{root}/{link.batch.object_key}", link)
        for link in above
        if not link.batch.object_key.endswith(_JSON)
    ]
    whole = [path for path, link in floors if max(link.above, applied) <= link.batch.after]
    reader = spark.read.schema(schema)
    parts = [reader.parquet(*whole)] if whole else []
    for path, link in floors:
        if path not in whole:
            parts.append(reader.parquet(path).where(sf.col("_commit") > max(link.above, applied)))
    for link in above:
        if link.batch.object_key.endswith(_JSON):
            rows = _of_envelope(spark, f"{root}/{link.batch.object_key}", [*types])
            floor = sf.col("_commit") > max(link.above, applied)
            parts.append(spark.createDataFrame(rows, schema).where(floor))
    deltas = reduce(lambda left, right: left.unionByName(right), parts)
    return deltas.toDF(*_SYSTEM, *names)


def _of_envelope(spark: SparkSession, path: str, names: Sequence[str]) -> list[tuple[Any, ...]]:
    """Return the deltas of a batch that is JSON for people; it is small enough for the driver."""
    [file] = spark.read.format("binaryFile").load(path).select("content").collect()
    rows = decode_batch(bytes(file.content))
    staged = columns_of(rows)
    return [_cells(row, staged, names) for row in rows]


def _cells(row: BatchRow, staged: Mapping[str, str], names: Sequence[str]) -> tuple[Any, ...]:
    """Return a delta's values in the order of names; those that it lacks are None."""
    own = (row.commit, row.ordinal, row.op, row.row_id, row.client_id, row.hlc, row.delta_id)
    texts = {staged[name]: value.decode() for name, value in row.columns}
    cells = {**texts, **dict(zip(_SYSTEM, own, strict=True))}
    return tuple([cells.get(name) for name in names])


def is_whole(body: bytes) -> bool:
    """Return whether bytes are those of a batch's object, and can be read to their end."""
    import pyarrow as pa  # noqa: PLC0415 - Glue has it; only who doubts a batch needs it
    import pyarrow.parquet as pq  # noqa: PLC0415

    if is_envelope(body):
        return _is_whole_envelope(body)
    try:
        with pq.ParquetFile(io.BytesIO(body)) as file:
            types = {field.name: str(field.type) for field in file.schema_arrow}
            for _ in file.iter_batches():
                pass
    except (pa.ArrowException, OSError):  # in memory only damaged bytes can fail
        return False
    return all(types.get(name) == _ARROW[kind] for name, kind in _SYSTEM.items())


def _is_whole_envelope(body: bytes) -> bool:
    try:
        decode_batch(body)
    except ValidationFailed:
        return False
    return True
