"""Writes rows into data files of a lake table: one partition a file, sorted as declared.

PyIceberg transforms whole columns by a library in Rust, `pyiceberg-core`, larger than everything
else in the layer. A small batch has few distinct values: each is transformed once, by PyIceberg's
own Python; tests compare the result with Spark's. Law L22: ``docs/spec/lake.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import uuid4

from pyiceberg.io.pyarrow import bin_pack_arrow_table, write_file
from pyiceberg.partitioning import PartitionFieldValue, PartitionKey
from pyiceberg.table import TableProperties, WriteTask

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyiceberg.io import FileIO
    from pyiceberg.manifest import DataFile
    from pyiceberg.partitioning import PartitionField
    from pyiceberg.table.metadata import TableMetadata

_FILE_BYTES: Final = TableProperties.WRITE_TARGET_FILE_SIZE_BYTES_DEFAULT


class Part(NamedTuple):
    """Rows of one partition."""

    key: PartitionKey | None
    """None where the table has no partitions."""
    rows: pa.Table


def data_files(metadata: TableMetadata, parts: Sequence[Part], io: FileIO) -> Iterator[DataFile]:
    """Write rows, and give the files that contain them; none for no rows.

    Args:
        metadata: the table's.
        parts: what `parts_of` gave.
        io: the file system of the table.
    """
    write_id = uuid4()
    packed = [
        (part.key, batches)
        for part in parts
        for batches in bin_pack_arrow_table(part.rows, _FILE_BYTES)
    ]
    tasks = [
        WriteTask(write_id, number, metadata.schema(), batches, partition_key=key)
        for number, (key, batches) in enumerate(packed)
    ]
    yield from write_file(io=io, table_metadata=metadata, tasks=iter(tasks))


def parts_of(metadata: TableMetadata, rows: pa.Table) -> list[Part]:
    """Return the rows of each partition, sorted; nothing for no rows."""
    if rows.num_rows == 0:
        return []
    spec, rows = metadata.spec(), _sorted(metadata, rows)
    if spec.is_unpartitioned():
        return [Part(None, rows)]
    places: dict[tuple[Any, ...], list[int]] = {}
    values = [_transformed(metadata, field, rows) for field in spec.fields]
    for place, key in enumerate(zip(*values, strict=True)):
        places.setdefault(key, []).append(place)
    parts = []
    for key, some in places.items():
        pairs = zip(spec.fields, key, strict=True)
        said = [PartitionFieldValue(field, value) for field, value in pairs]
        parts.append(Part(PartitionKey(said, spec, metadata.schema()), rows.take(some)))
    return parts


def _sorted(metadata: TableMetadata, rows: pa.Table) -> pa.Table:
    """Sort rows as Spark's writes do: NULL first."""
    order = metadata.sort_order_by_id(metadata.default_sort_order_id)
    if order is None or order.is_unsorted:
        return rows
    import pyarrow.compute as pc  # noqa: PLC0415 - only who sorts needs it

    schema = metadata.schema()
    names = [schema.find_column_name(one.source_id) for one in order.fields]
    keys: Any = [(name, "ascending", "at_start") for name in names]
    return rows.take(pc.sort_indices(rows, sort_keys=keys))


def _transformed(metadata: TableMetadata, field: PartitionField, rows: pa.Table) -> list[Any]:
    """Return the partition's value of each row, as Iceberg stores it."""
    source = metadata.schema().find_field(field.source_id)
    transform = field.transform.transform(source.field_type)
    column = _as_kept(rows[source.name].combine_chunks()).dictionary_encode()
    values = [transform(one) for one in column.dictionary.to_pylist()]
    return [None if one is None else values[one] for one in column.indices.to_pylist()]


def _as_kept(column: Any) -> Any:
    """Return values in Iceberg's form: times as numbers, since the epoch."""
    import pyarrow as pa  # noqa: PLC0415 - only who partitions needs it

    if pa.types.is_timestamp(column.type):
        return column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
    return column.cast(pa.int32()) if pa.types.is_date32(column.type) else column
