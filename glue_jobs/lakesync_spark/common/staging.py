"""Reads staged batches from S3."""

from __future__ import annotations

import io
from functools import reduce
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as sf

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from lakesync.core.clock import Stamp
    from lakesync.materialise.chain import Link

_SYSTEM: Final = {
    "_commit": "BIGINT",
    "_ordinal": "INT",
    "_op": "STRING",
    "_row_id": "STRING",
    "_client_id": "STRING",
    "_hlc": "BIGINT",
    "_delta_id": "STRING",
}
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
        spark: the session.
        root: where object keys begin, as ``s3://bucket``.
        links: the chain.
        names: the columns, by their lake names, and their names in the objects; one that an object
            lacks is NULL there.
        applied: commits at or below it are left out.
    """
    # Given, not read from each file's footer.
    types = {**_SYSTEM, **dict.fromkeys(names.values(), "STRING")}
    schema = ", ".join(f"`{name}` {kind}" for name, kind in types.items())
    above = [link for link in links if link.batch.last > applied]
    floors = [(f"{root}/{link.batch.object_key}", link) for link in above]
    whole = [path for path, link in floors if max(link.above, applied) <= link.batch.after]
    reader = spark.read.schema(schema)
    parts = [reader.parquet(*whole)] if whole else []
    for path, link in floors:
        if path not in whole:
            parts.append(reader.parquet(path).where(sf.col("_commit") > max(link.above, applied)))
    deltas = reduce(lambda left, right: left.unionByName(right), parts)
    return deltas.toDF(*_SYSTEM, *names)


def is_whole(body: bytes) -> bool:
    """Return whether bytes are those of a batch's object, and can be read to their end."""
    import pyarrow as pa  # noqa: PLC0415 - Glue has it; only who doubts a batch needs it
    import pyarrow.parquet as pq  # noqa: PLC0415

    try:
        with pq.ParquetFile(io.BytesIO(body)) as file:
            types = {field.name: str(field.type) for field in file.schema_arrow}
            for _ in file.iter_batches():
                pass
    except (pa.ArrowException, OSError):  # in memory only damaged bytes can fail
        return False
    return all(types.get(name) == _ARROW[kind] for name, kind in _SYSTEM.items())
