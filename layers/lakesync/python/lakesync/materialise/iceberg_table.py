"""One Iceberg table as the function uses it: its mark, columns and files, and its commits.

Rules of this module
    1. A commit is one compare-and-swap of the catalogue, from the snapshot that was read: of data,
       mark and tag together. PyIceberg's own retries are never used, because they would append to
       whatever another writer has committed in the meantime.
    2. It never makes a table and never changes a schema; Spark does both.

Laws L4, L6, L7: ``docs/spec/lake.md``.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from typing import TYPE_CHECKING, Any

from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.table.update import AssertCurrentSchemaId, AssertDefaultSpecId, AssertTableUUID
from pyiceberg.table.update.snapshot import ManageSnapshots

from lakesync.errors import Conflict
from lakesync.materialise.columns import described
from lakesync.materialise.data_files import data_files, parts_of
from lakesync.materialise.iceberg_transaction import StagedTransaction
from lakesync.materialise.shape import (
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
    delete_wins,
)
from lakesync.materialise.table_layout import TableLayout, recorded_layout

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyiceberg.catalog import Catalog
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import FileScanTask, Table, Transaction
    from pyiceberg.table.metadata import TableMetadata

    from lakesync.materialise.columns import LakeColumn
    from lakesync.materialise.data_files import Part
    from lakesync.materialise.shape import Kind


class IcebergTable:
    """A lake table as it is when it is loaded."""

    def __init__(self, table: Table) -> None:
        self._table = table

    @classmethod
    def load(cls, catalogue: Catalog, database: str, name: str) -> IcebergTable | None:
        """Return a table; None if it does not exist."""
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
        """The stack to which it belongs."""
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
        """Whether the layout of its schema applies."""
        return self.kind is not None and self.kind.may_partition

    @property
    def layout(self) -> TableLayout:
        """The layout that was last given to the table."""
        return recorded_layout(self._table.properties) or TableLayout()

    def parts(self, rows: pa.Table) -> list[Part]:
        """Return rows by partition, as `commit` accepts them."""
        return parts_of(self._table.metadata, rows)

    def columns(self) -> tuple[LakeColumn, ...]:
        """Return the table's own columns, without LakeSync's."""
        return own_columns(self._table.metadata)

    def comments(self) -> dict[str, str | None]:
        """Return the catalogue's comment on each column."""
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
        """Return the live rows of a file, with some columns or with all."""
        schema = self._table.schema()
        projected = schema.select(*names) if names else schema
        scan = ArrowScan(self._table.metadata, self._table.io, projected, AlwaysTrue())
        return scan.to_table([task]).cast(projected.as_arrow())

    def rows(self, rows: Sequence[Mapping[str, Any]]) -> pa.Table:
        """Return rows in the table's form."""
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
        """Yield the properties of snapshots with a mark, from the tagged one to the current one."""
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
    """Return a table's own columns, without LakeSync's."""
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
