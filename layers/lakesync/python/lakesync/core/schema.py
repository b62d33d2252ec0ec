"""Table schemas: which columns a table has, of which type, and what else is declared of it.

A table needs no schema to sync. With one, each delta is checked for column and type by itself, and
the lake's columns are typed. How a schema may change: `lakesync.core.evolution`.
Laws S1, S2, S4: ``docs/spec/schema.md``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from lakesync.core.column_types import fits, precision_scale
from lakesync.core.delta import COLUMNS_MAX, check_identifier
from lakesync.core.names import first_spellings, folded, name_taken
from lakesync.core.values import NULL
from lakesync.errors import SchemaMismatch, ValidationFailed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lakesync.core.delta import Delta

SOURCE_TABLE_CHARACTERS_MAX: Final = 256
"""The name of a table in another system, with whatever it is qualified by there."""
ROW_ID: Final = "row_id"
"""What a primary key may name beside declared columns: the row's id."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a schema; its type is one of `column_types.TYPES`, or ``decimal(p,s)``."""

    name: str
    type: str
    nullable: bool = True

    def __post_init__(self) -> None:
        check_identifier(self.name, "columns.name")
        precision_scale(self.type)


@dataclass(frozen=True, slots=True)
class TableSchema:
    """What is declared of one table. Valid by construction.

    Raises:
        ValidationFailed: a name is malformed.
        SchemaMismatch: a type is unknown, a column repeats, a key names no column.
    """

    table: str
    columns: tuple[Column, ...]
    version: int = 1
    primary_key: tuple[str, ...] = ()
    """For adapters: the columns that identify a row where there are no row ids."""
    soft_delete: bool = False
    """For adapters: a deleted row is marked in the destination, not removed."""
    external_id_column: str | None = None
    """For adapters: the column that names the row in the other system."""
    source_table: str | None = None
    """For adapters: the table's name in the other system."""
    append: bool = False
    """Rows are events: written once, never merged, at a fraction of the cost."""
    partition: tuple[str, ...] = ()
    """The Iceberg table is partitioned by these columns, timestamps by day."""
    keep_tombstones: bool = False
    """Deletions are never forgotten, so deltas of any age are merged: for tables that history is
    loaded into; see ``docs/adr/0008-loading-old-data.md``."""

    def __post_init__(self) -> None:
        check_identifier(self.table, "table")
        names = [column.name for column in self.columns]
        if not 0 < len(names) <= COLUMNS_MAX:
            raise SchemaMismatch(f"a schema needs 1 to {COLUMNS_MAX} columns", field="columns")
        if len(set(map(folded, names))) != len(names):
            raise SchemaMismatch("a column is declared twice, or in two spellings", field="columns")
        external = () if self.external_id_column is None else (self.external_id_column,)
        for field, used in (
            ("primaryKey", self.primary_key),
            ("partition", self.partition),
            ("externalIdColumn", external),
        ):
            if len(set(used)) != len(used):
                raise SchemaMismatch(f"{field} names a column twice", field=field)
            unknown = sorted(set(used) - {*names, *([ROW_ID] if field == "primaryKey" else ())})
            if unknown:
                raise SchemaMismatch(f"{field} names no declared column: {unknown}", field=field)
        source = self.source_table
        if source is not None and not 1 <= len(source) <= SOURCE_TABLE_CHARACTERS_MAX:
            raise SchemaMismatch(
                f"sourceTable is 1 to {SOURCE_TABLE_CHARACTERS_MAX} characters", field="sourceTable"
            )


@dataclass(frozen=True, slots=True)
class Schemas:
    """The schemas of tables, as many as whoever asked may know of."""

    version: int
    """Grows with every schema that is registered or changed; 0 without any."""
    tables: tuple[TableSchema, ...]
    strict: bool = False
    """Only tables with a schema are written."""


def check_delta(schema: TableSchema, delta: Delta, *, typed: bool = True) -> None:
    """Refuse a delta that does not fit its table; values of another type only if ``typed``.

    Raises:
        SchemaMismatch: an unknown column, a value of another type, or null where it may not be.
        NameTaken: a column is declared under another spelling.
    """
    columns = {column.name: column for column in schema.columns}
    for name, value in delta.columns:
        column = columns.get(name)
        if column is None:
            first = first_spellings(columns).get(folded(name))
            if first is not None:
                raise name_taken(name, first, "column")
            raise SchemaMismatch(
                f"table {schema.table} has no column {name}; register it, or leave it out",
                field=name,
            )
        if value == NULL:
            if not column.nullable:
                raise SchemaMismatch(f"{schema.table}.{name} may not be null", field=name)
        elif typed and not fits(column.type, value):
            message = f"{schema.table}.{name} is {column.type}; the value is not"
            raise SchemaMismatch(message, field=name)


def schema_from_json(body: object) -> TableSchema:
    """Read a schema as ``POST /admin/schema`` takes it; strict, and the fault's path is named.

    Raises:
        ValidationFailed: a field is missing, unknown or of another shape.
        SchemaMismatch: as `TableSchema`.
    """
    fields = _object(body, "body", {"table", "columns"}, _OPTIONAL_FIELDS)
    columns = fields["columns"]
    if not isinstance(columns, list):
        raise ValidationFailed("columns must be a list", field="columns")
    return TableSchema(
        table=_typed(fields, "table", str, ""),
        columns=tuple(_column(item, f"columns[{index}]") for index, item in enumerate(columns)),
        version=_typed(fields, "version", int, 1),
        primary_key=_names(fields, "primaryKey"),
        soft_delete=_typed(fields, "softDelete", bool, default=False),
        external_id_column=_typed(fields, "externalIdColumn", str, None),
        source_table=_typed(fields, "sourceTable", str, None),
        append=_typed(fields, "append", bool, default=False),
        partition=_names(fields, "partition"),
        keep_tombstones=_typed(fields, "keepTombstones", bool, default=False),
    )


def schema_to_json(schema: TableSchema) -> dict[str, object]:
    """Write a schema as `schema_from_json` reads it, its version included."""
    optional: dict[str, object] = {
        "primaryKey": list(schema.primary_key),
        "softDelete": schema.soft_delete,
        "externalIdColumn": schema.external_id_column,
        "sourceTable": schema.source_table,
        "append": schema.append,
        "partition": list(schema.partition),
        "keepTombstones": schema.keep_tombstones,
    }
    columns = [{"name": column.name, "type": column.type, "nullable": column.nullable}
               for column in schema.columns]  # fmt: skip
    head = {"table": schema.table, "version": schema.version, "columns": columns}
    return head | {name: value for name, value in optional.items() if value}


def schemas_to_json(schemas: Schemas) -> dict[str, object]:
    """Write schemas as ``GET /admin/schema`` answers them."""
    fields = {"schemaVersion": schemas.version, "tables": [*map(schema_to_json, schemas.tables)]}
    return fields | ({"strict": True} if schemas.strict else {})


def schemas_from_json(body: object) -> Schemas:
    """Read what `schemas_to_json` wrote.

    Raises:
        ValidationFailed: it is something else.
    """
    fields = _object(body, "body", {"schemaVersion", "tables"}, frozenset({"strict"}))
    tables = fields["tables"]
    if not isinstance(tables, list):
        raise ValidationFailed("tables must be a list", field="tables")
    strict = _typed(fields, "strict", bool, default=False)
    return Schemas(
        _typed(fields, "schemaVersion", int), tuple(map(schema_from_json, tables)), strict
    )


def shown_to_clients(schema: TableSchema) -> TableSchema:
    """Give what a client gets of a schema: nothing of the lake or of other systems."""
    return replace(
        schema, soft_delete=False, external_id_column=None, source_table=None, partition=(),
        keep_tombstones=False,
    )  # fmt: skip


_OPTIONAL_FIELDS: Final = frozenset(
    {"version", "primaryKey", "softDelete", "externalIdColumn", "sourceTable", "append",
     "partition", "keepTombstones"}
)  # fmt: skip


def _column(item: object, path: str) -> Column:
    # What existing clients say of relations between tables is taken, and not used.
    fields = _object(item, path, {"name", "type"}, frozenset({"nullable", "references"}))
    return Column(
        _typed(fields, "name", str, ""),
        _typed(fields, "type", str, "").replace(" ", ""),
        _typed(fields, "nullable", bool, default=True),
    )


def _object(
    body: object, path: str, required: set[str], optional: frozenset[str]
) -> dict[str, object]:
    if not isinstance(body, dict):
        raise ValidationFailed(f"{path} must be an object", field=path)
    missing = sorted(required - body.keys())
    if missing:
        raise ValidationFailed(f"{path} lacks {', '.join(missing)}", field=missing[0])
    unknown = sorted(str(name)[:40] for name in body.keys() - required - optional)
    if unknown:
        raise ValidationFailed(f"{path} has unknown fields: {', '.join(unknown)}", field=unknown[0])
    return body


_KINDS: Final = {str: "text", int: "an integer", bool: "true or false"}


def _typed(fields: Mapping[str, object], name: str, kind: type, default: object = None) -> Any:
    value = fields.get(name, default)
    # A bool is an int to Python; `type` distinguishes them.
    if value is not default and type(value) is not kind:
        raise ValidationFailed(f"{name} must be {_KINDS[kind]}", field=name)
    return value


def _names(fields: Mapping[str, object], name: str) -> tuple[str, ...]:
    value = fields.get(name, [])
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ValidationFailed(f"{name} must be a list of column names", field=name)
    return tuple(value)
