"""Iceberg tables in a folder, with what the Glue job writes into them, said without Spark.

What the job itself writes is read back by `tests/glue/support/read_back.py`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.exceptions import NoSuchNamespaceError
from pyiceberg.io import load_file_io
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.serializers import ToOutputFile
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.metadata import new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.table.update import update_table_metadata
from pyiceberg.types import (
    BooleanType,
    DateType,
    DoubleType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    TimestamptzType,
)

from lakesync.analysis.lake import Lake
from lakesync.analysis.lake_queries import LakeChanges, read_tail
from lakesync.core.names import lake_columns, lake_database
from tests.glue.support.texts import kept_text, typed_value
from tests.support.local_gateway import GATEWAY

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    import pytest

    from lakesync.adapters.database import PlacedDelta
    from lakesync.ports import Buffer
    from tests.support.local_gateway import LocalGateway

PREFIX = "ls"
ICEBERG: dict[str, Any] = {
    "string": StringType,
    "json": StringType,
    "number": DoubleType,
    "integer": LongType,
    "boolean": BooleanType,
    "timestamp": TimestamptzType,
    "date": DateType,
}


class FolderCatalog(NoopCatalog):
    """A catalogue of tables whose files lie in a folder."""

    def __init__(self) -> None:
        super().__init__("folder")
        self.tables: dict[tuple[str, str], Table] = {}

    def make(
        self, location: str, key: tuple[str, str], schema: Schema, properties: dict[str, str]
    ) -> Table:
        metadata = new_table_metadata(
            schema, UNPARTITIONED_PARTITION_SPEC, UNSORTED_SORT_ORDER, location, properties
        )
        self._keep(key, metadata, 0)
        return self.tables[key]

    def list_tables(self, namespace: Any) -> list[Any]:
        listed = [key for key in self.tables if key[0] == namespace]
        if not listed:
            raise NoSuchNamespaceError(namespace)
        return listed

    def load_table(self, identifier: Any) -> Table:
        return self.tables[identifier]

    def commit_table(self, table: Table, requirements: Any, updates: Any) -> CommitTableResponse:
        for requirement in requirements:
            requirement.validate(table.metadata)
        metadata = update_table_metadata(table.metadata, updates)
        database, name = table.name()
        written = self._keep((database, name), metadata, len(metadata.snapshots))
        return CommitTableResponse.model_validate(
            {"metadata": metadata, "metadata-location": written}
        )

    def _keep(self, key: tuple[str, str], metadata: Any, version: int) -> str:
        location = f"{metadata.location}/metadata/{version:05}.metadata.json"
        io = load_file_io({}, location)
        ToOutputFile.table_metadata(metadata, io.new_output(location), overwrite=True)
        self.tables[key] = Table(key, metadata, location, io, self)
        return location


@dataclass
class FolderLake:
    """One gateway's lake in a folder; `of` gives it as the command line has it."""

    folder: Path
    gateway: str
    catalog: FolderCatalog = field(default_factory=FolderCatalog)

    def of(self) -> Lake:
        lake = Lake(_Aws(), self.gateway)  # type: ignore[arg-type]  # all that a lake asks of it
        lake.__dict__["_catalogue"] = self.catalog
        return lake

    def put_changes(
        self,
        table: str,
        placed: Iterable[PlacedDelta],
        types: Mapping[str, str],
        *,
        mark: int | None = None,
        kind: str = "changes",
    ) -> None:
        """Append deltas to a changes table, or an events table; the first make it.

        Args:
            types: the type of each column, by its name on the wire.
            mark: the commit up to which the table goes; by default that of the last delta.
            kind: ``changes``, or ``events``.
        """
        deltas = list(placed)
        database, name = lake_database(PREFIX, self.gateway), table.lower()
        name += "__changes" if kind == "changes" else ""
        names = lake_columns(types, {})
        made = self.catalog.tables.get((database, name))
        if made is None:
            schema = _schema(types, names, kind)
            properties = {"lakesync.kind": kind, "lakesync.table": table}
            location = f"file://{self.folder}/{database}/{name}"
            made = self.catalog.make(location, (database, name), schema, properties)
            written = {
                str(made.schema().find_field(names[name]).field_id): (type_name, name)
                for name, type_name in types.items()
            }
            with made.transaction() as transaction:
                transaction.set_properties({"lakesync.columns": json.dumps(written)})
        rows = [_row(one, types, names) for one in deltas]
        last = max((one.position.commit for one in deltas), default=0) if mark is None else mark
        made.append(
            pa.Table.from_pylist(rows, made.schema().as_arrow()),  # what it lacks is left out
            snapshot_properties={"lakesync.commit": str(last)},
        )


class _Aws:
    def output(self, name: str) -> str:
        assert name == "DatabasePrefix"
        return PREFIX


_HEAD = 7


def _schema(types: Mapping[str, str], names: Mapping[str, str], kind: str) -> Schema:
    own = [
        NestedField(_HEAD + number, names[written], ICEBERG[kind]())
        for number, (written, kind) in enumerate(types.items(), start=1)
    ]
    fields = (
        NestedField(1, "_commit", LongType()),
        NestedField(2, "_ordinal", IntegerType()),
        NestedField(3, "_op", StringType()),
        NestedField(4, "_id", StringType()),
        NestedField(5, "_client_id", StringType()),
        NestedField(6, "_hlc", LongType()),
        NestedField(7, "_delta_id", StringType()),
        *own,
        NestedField(901, "_columns", ListType(902, StringType())),
        NestedField(903, "_texts", MapType(904, StringType(), 905, StringType())),
    )
    only = {"_op", "_columns"} if kind == "events" else set()
    return Schema(*(field for field in fields if field.name not in only))


def _row(one: PlacedDelta, types: Mapping[str, str], names: Mapping[str, str]) -> dict[str, Any]:
    (commit, ordinal), delta = one
    texts = {name: kept_text(types[name], value) for name, value in delta.columns}
    kept = {names[name]: text for name, text in texts.items() if text is not None}
    return {
        "_commit": commit,
        "_ordinal": ordinal,
        "_op": delta.op.name,
        "_id": delta.row_id,
        "_client_id": delta.client_id,
        "_hlc": delta.hlc,
        "_delta_id": delta.delta_id,
        **{names[name]: typed_value(types[name], value) for name, value in delta.columns},
        "_columns": [names[name] for name, _ in delta.columns],
        "_texts": list(kept.items()) or None,
    }


def materialise(
    past: FolderLake,
    buffer: Buffer,
    types: Mapping[str, str],
    *,
    table: str = "todos",
    kind: str = "changes",
) -> None:
    """Bring what the log has of a table into the lake."""
    changes = LakeChanges(past.of(), table)
    tail = read_tail(buffer, past.gateway, changes.until, lambda delta: delta.table == table)
    past.put_changes(table, tail.deltas, types, mark=tail.until, kind=kind)


def in_folder(folder: Path, gateway: LocalGateway, monkeypatch: pytest.MonkeyPatch) -> FolderLake:
    """Let commands find a lake in a folder, and the stores of a local gateway."""
    past = FolderLake(folder, GATEWAY)
    monkeypatch.setattr("lakesync.analysis.lake.Lake", lambda _, of: replace(past, gateway=of).of())
    monkeypatch.setattr(
        "lakesync.cli.commands.gateways.stores", lambda _: (gateway.buffer, gateway.objects)
    )
    return past
