"""One Iceberg table as the function uses it: its mark, columns and files, and its commits.

Rules of this module
    1. A commit is one compare-and-swap of the catalogue, from the snapshot that was read: of data,
       mark and tag together. PyIceberg's own retries are never used, because they would append to
       whatever another writer has committed in the meantime.
    2. It never makes a table and never changes a schema; Spark does both.
    3. Rows are written into data files of one partition each, sorted as declared.

Three things are done otherwise than in PyIceberg, to save time and size. Partitions are computed by
its own Python, once for each distinct value, and not by `pyiceberg-core`, which is larger than
everything else in the layer; tests compare the result with Spark's. A transaction computes the
table's metadata once, and not on every access, of which a commit makes two dozen. A small file is
put by one request, and not by a multipart upload of three.

Laws L4, L6, L7, L22: ``docs/spec/lake.md``.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import uuid4

from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import ArrowScan, PyArrowFileIO, bin_pack_arrow_table, write_file
from pyiceberg.partitioning import PartitionFieldValue, PartitionKey
from pyiceberg.table import TableProperties, Transaction, WriteTask
from pyiceberg.table.update import AssertCurrentSchemaId, AssertDefaultSpecId, AssertTableUUID
from pyiceberg.table.update.snapshot import ManageSnapshots

from lakesync.errors import Conflict
from lakesync.materialise.lake_schema import (
    COLUMNS,
    COMMIT,
    EPOCH,
    FOR_EVER_MS,
    ID,
    KIND,
    KINDS,
    MARK_TAG,
    STACK,
    WRITTEN,
    BatchMark,
    TableLayout,
    delete_wins,
    described,
    recorded_layout,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyarrow.fs import FileSystem
    from pyiceberg.catalog import Catalog
    from pyiceberg.io import FileIO
    from pyiceberg.manifest import DataFile
    from pyiceberg.partitioning import PartitionField
    from pyiceberg.table import FileScanTask, Table
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.update import TableUpdate

    from lakesync.materialise.lake_schema import Kind, LakeColumn


class IcebergTable:
    """A lake table as it is when it is loaded."""

    def __init__(self, table: Table) -> None:
        self._table = table

    @classmethod
    def load(cls, catalogue: Catalog, database: str, name: str) -> IcebergTable | None:
        try:
            return cls(catalogue.load_table((database, name)))
        except NoSuchTableError:
            return None

    @property
    def kind(self) -> Kind | None:
        """The kind as which it was made; None if LakeSync did not make it."""
        return KINDS.get(self._table.properties.get(KIND, ""))

    @property
    def stack(self) -> str:
        return self._table.properties.get(STACK, "")

    @property
    def written(self) -> str:
        """The synced table that it contains, by its name on the wire; empty if it does not say."""
        return self._table.properties.get(WRITTEN, "")

    @property
    def delete_wins(self) -> bool:
        """Whether no update restores a deleted row."""
        return delete_wins(self._table.properties)

    @property
    def may_partition(self) -> bool:
        return self.kind is not None and self.kind.may_partition

    @property
    def layout(self) -> TableLayout:
        return recorded_layout(self._table.properties) or TableLayout()

    def parts(self, rows: pa.Table) -> list[Part]:
        """Return rows by partition, as `commit` accepts them."""
        return parts_of(self._table.metadata, rows)

    def columns(self) -> tuple[LakeColumn, ...]:
        """Return the table's own columns, without LakeSync's."""
        return own_columns(self._table.metadata)

    def comments(self) -> dict[str, str | None]:
        return {field.name: field.doc for field in self._table.schema().fields}

    def batch_mark(self) -> BatchMark | None:
        """Return the table's mark: the greatest of those that led to the current snapshot.

        None if no snapshot has one, or none since the tagged one: Spark's run reports the reason.
        """
        marked = list(self._marked())
        if not marked:
            return None
        return BatchMark(
            max(int(one[COMMIT]) for one in marked), max(int(one[EPOCH]) for one in marked)
        )

    def files(self) -> list[FileScanTask]:
        """Return the data files of the current snapshot, each with its deletions."""
        return list(self._table.scan().plan_files())

    def may_hold(self, file: DataFile, ids: Sequence[bytes]) -> bool:
        """Return whether a file's bounds allow any of some row ids, in order of bytes."""
        field = self._table.schema().find_field(ID).field_id
        lower = (file.lower_bounds or {}).get(field)
        upper = (file.upper_bounds or {}).get(field)
        if lower is None or upper is None:
            return True
        place = bisect_left(ids, lower)
        return place < len(ids) and ids[place] <= upper

    def read(self, task: FileScanTask, *names: str) -> pa.Table:
        schema = self._table.schema()
        projected = schema.select(*names) if names else schema
        scan = ArrowScan(self._table.metadata, self._table.io, projected, AlwaysTrue())
        return scan.to_table([task]).cast(projected.as_arrow())

    def rows(self, rows: Sequence[Mapping[str, Any]]) -> pa.Table:
        import pyarrow as pa  # noqa: PLC0415 - its types alone are needed elsewhere

        return pa.Table.from_pylist(list(rows), schema=self._table.schema().as_arrow())

    def commit(
        self, parts: Sequence[Part], replaced: Iterable[DataFile], properties: Mapping[str, str]
    ) -> None:
        """Replace whole files by rows, with the mark and its tag, in one commit.

        Raises:
            Conflict: the table has changed; nothing was done.
        """
        written = data_files(self._table.metadata, parts, self._table.io)
        self.commit_files(written, replaced, properties)

    def commit_files(
        self,
        added: Iterable[DataFile],
        replaced: Iterable[DataFile],
        properties: Mapping[str, str],
    ) -> None:
        """Replace whole files by others that are written, as `commit` does.

        Raises:
            Conflict: the table has changed; nothing was done.
        """
        transaction = StagedTransaction(self._table)
        update = transaction.update_snapshot(snapshot_properties=dict(properties))
        replaced = list(replaced)
        producer: Any = update.overwrite() if replaced else update.fast_append()
        for file in added:  # without any, the mark is new
            producer.append_data_file(file)
        for file in replaced:
            producer.delete_data_file(file)
        producer.commit()
        with ManageSnapshots(transaction) as refs:
            refs.create_tag(producer.snapshot_id, MARK_TAG, FOR_EVER_MS)
        commit_once(self._table, transaction)

    def _marked(self) -> Iterator[Mapping[str, str]]:
        tagged = self._table.metadata.refs.get(MARK_TAG)
        snapshot = self._table.current_snapshot()
        while snapshot is not None:
            said = snapshot.summary.additional_properties if snapshot.summary else {}
            if COMMIT in said:
                yield said
                if tagged and snapshot.snapshot_id == tagged.snapshot_id:
                    return
            parent = snapshot.parent_snapshot_id
            snapshot = None if parent is None else self._table.snapshot_by_id(parent)


def own_columns(metadata: TableMetadata) -> tuple[LakeColumn, ...]:
    recorded = json.loads(metadata.properties.get(COLUMNS) or "{}")
    columns = (
        described(field.name, recorded.get(str(field.field_id)), field.doc)
        for field in metadata.schema().fields
    )
    return tuple(column for column in columns if column is not None)


def commit_once(table: Table, transaction: Transaction) -> None:
    """Commit what a transaction has gathered, unless the table has changed.

    Raises:
        Conflict: it has; nothing was done.
    """
    metadata = table.metadata
    requirements = (
        *transaction._requirements,  # noqa: SLF001 - its own commit would try again by itself
        AssertTableUUID(uuid=metadata.table_uuid),
        AssertCurrentSchemaId.model_validate(
            {"type": "assert-current-schema-id", "current-schema-id": metadata.current_schema_id}
        ),
        AssertDefaultSpecId.model_validate(
            {"type": "assert-default-spec-id", "default-spec-id": metadata.default_spec_id}
        ),
    )
    try:
        table._do_commit(transaction._updates, requirements)  # noqa: SLF001 - as above
    except CommitFailedException as exc:
        raise Conflict(f"{table.name()[-1]} was changed by somebody else meanwhile") from exc


# --- data files -----------------------------------------------------------------------------------


_FILE_BYTES: Final = TableProperties.WRITE_TARGET_FILE_SIZE_BYTES_DEFAULT


class Part(NamedTuple):
    key: PartitionKey | None
    """None where the table has no partitions."""
    rows: pa.Table


def data_files(metadata: TableMetadata, parts: Sequence[Part], io: FileIO) -> Iterator[DataFile]:
    """Write rows, and give the files that contain them; none for no rows."""
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


# --- transactions ---------------------------------------------------------------------------------


class _Looked(NamedTuple):
    """The input of the computed metadata, and the result."""

    base: TableMetadata
    staged: tuple[TableUpdate, ...]
    metadata: TableMetadata


class StagedTransaction(Transaction):
    """PyIceberg's, with metadata that are computed again only after more is staged.

    The metadata given out are never modified: staging makes new ones.
    """

    def __init__(self, table: Table) -> None:
        super().__init__(table)
        self._looked: _Looked | None = None

    @property
    def table_metadata(self) -> TableMetadata:
        looked, base, staged = self._looked, self._table.metadata, self._updates
        if looked is None or looked.base is not base or looked.staged is not staged:
            looked = self._looked = _Looked(base, staged, super().table_metadata)
        return looked.metadata


# --- files on S3 ----------------------------------------------------------------------------------


FILE_IO = f"{__name__}.LakeFileIO"
"""For PyIceberg's property ``py-io-impl``."""


class LakeFileIO(PyArrowFileIO):
    """Opens a file once its first part is full; one that is closed before is put whole."""

    def _initialize_s3_fs(self, netloc: str | None) -> FileSystem:
        opened = super()._initialize_s3_fs(netloc)
        make, (options,) = opened.__reduce__()
        return make({**options, "allow_delayed_open": True})
