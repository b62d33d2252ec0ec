"""Table schemas: which columns a table has, of which types, and what else is declared for it.

A table needs no schema to sync. With one, each delta's columns and types are checked, and the
lake's columns are typed. Laws S1, S2, S4: ``docs/spec/schema.md``.

- A schema may say by what the table's rows are partitioned and sorted in the lake. A partition is
  written as a column's name, or as a transform of a column: ``month(created_at)``,
  ``bucket(16,customer)``, ``truncate(4,code)``. The transforms are Iceberg's.
- A schema only grows, so that no row, client or table is left behind. Law S3, with the table of
  what may change.
- What administrators write is read by `lakesync.declare.schemas`; what was written here, here.
"""

from __future__ import annotations

import re
from dataclasses import MISSING, dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from lakesync.core.column_types import fits, precision_scale, widens
from lakesync.core.delta import COLUMNS_MAX, NULL
from lakesync.core.names import (
    check_identifier,
    check_table_name,
    first_spellings,
    folded,
    name_taken,
)
from lakesync.errors import Conflict, InvalidInput, SchemaMismatch, ValidationFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from _typeshed import DataclassInstance

    from lakesync.core.delta import Delta

    T = TypeVar("T", bound=DataclassInstance)

# --- partitions and order in the lake -------------------------------------------------------------


PARTITION_WIDTH_MAX: Final = 1_000
"""Buckets of a table, or characters or numbers that `truncate` groups. Each partition of a batch is
a file of its own."""
_WRITTEN: Final = re.compile(r"(?:([a-z]+)\((?:([0-9]{1,5}),)?)?([A-Za-z_][A-Za-z0-9_]{0,63})\)?")
_TIMES: Final = frozenset({"date", "timestamp"})
_KEYS: Final = frozenset({"string", "integer", "decimal"})
_TYPES: Final = {
    "": _TIMES | _KEYS | {"number", "boolean"},
    "year": _TIMES,
    "month": _TIMES,
    "day": _TIMES,
    "hour": frozenset({"timestamp"}),
    "bucket": _TIMES | _KEYS,
    "truncate": _KEYS,
}
"""By transform: the types of columns that it accepts. Other types give no useful partitions, or are
not supported yet."""
_WITH_WIDTH: Final = frozenset({"bucket", "truncate"})


@dataclass(frozen=True, slots=True)
class PartitionField:
    """One column that a table is partitioned by."""

    column: str
    transform: str = ""
    """One of Iceberg's transforms; empty: by day for timestamps, by value for all else."""
    width: int = 0
    """The number of buckets, or the length of the prefix; 0 for other transforms."""

    def __str__(self) -> str:
        """Return the field in the form that schemas use."""
        if not self.transform:
            return self.column
        return f"{self.transform}({f'{self.width},' if self.width else ''}{self.column})"

    def transform_of(self, kind: str) -> str:
        """Return Iceberg's transform for a column of a type; ``identity`` if there is none."""
        return self.transform or ("day" if kind == "timestamp" else "identity")


def partition_field(text: str) -> PartitionField:
    """Read a field in the form that schemas use.

    Raises:
        SchemaMismatch: it is neither a column's name nor a known transform of one.
    """
    match = _WRITTEN.fullmatch(text)
    name, width, column = match.groups() if match else (None, None, "")
    is_call = text.endswith(")")
    if match is None or is_call != (name is not None) or (name or "") not in _TYPES:
        raise SchemaMismatch(
            f"partition {text[:80]!r} is neither a column nor one of year, month, day and hour"
            " (column), bucket and truncate (number, column)",
            field="partition",
        )
    if (width is not None) != (name in _WITH_WIDTH) or not _is_width(width):
        raise SchemaMismatch(
            f"partition {text[:80]!r}: bucket and truncate take a number of 1 to"
            f" {PARTITION_WIDTH_MAX:,}, as in bucket(16,{column}); the others take none",
            field="partition",
        )
    return PartitionField(column, name or "", int(width or 0))


def check_partition_type(field: PartitionField, kind: str) -> None:
    """Refuse to partition by a column of an unsuitable type.

    Raises:
        SchemaMismatch: the type is unsuitable.
    """
    if _plain(kind) in _TYPES[field.transform]:
        return
    named = sorted(name for name, kinds in _TYPES.items() if name and _plain(kind) in kinds)
    instead = f"of it there are {', '.join(named)}" if named else "use another column"
    raise SchemaMismatch(
        f"column {field.column} is {kind}, by which no table is partitioned as {field}; {instead}",
        field="partition",
    )


def check_sort_type(column: str, kind: str) -> None:
    """Refuse to sort by a column whose values have no order, or whose type is not yet decided.

    Raises:
        SchemaMismatch: the type is one of these.
    """
    if _plain(kind) not in _TYPES[""]:
        raise SchemaMismatch(
            f"column {column} is {kind}, by which no table is sorted; use another column",
            field="sort",
        )


def _is_width(width: str | None) -> bool:
    return width is None or 1 <= int(width) <= PARTITION_WIDTH_MAX


def _plain(kind: str) -> str:
    return "decimal" if precision_scale(kind) is not None else kind


SOURCE_TABLE_CHARACTERS_MAX: Final = 256
"""Length of the name of a table in another system, with its qualifiers there."""
DESCRIPTION_BYTES_MAX: Final = 160
"""Length of a column's description, in UTF-8. With type and name it becomes a comment of at most
255 bytes, the limit of the Glue Data Catalog."""
_ONE_LINE: Final = re.compile(r"[ -~\u00a0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]*")
ROW_ID: Final = "row_id"
"""What a primary key may name besides declared columns: the row's id."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a schema; its type is one of `column_types.TYPES`, or ``decimal(p,s)``."""

    name: str
    type: str
    nullable: bool = True
    description: str = ""
    """What it means, for people who query the lake."""

    def __post_init__(self) -> None:
        for error in column_faults(self):
            raise error


def is_description(text: str) -> bool:
    """Return whether text may describe a column."""
    return bool(_ONE_LINE.fullmatch(text)) and len(text.encode()) <= DESCRIPTION_BYTES_MAX


def column_faults(column: Column, at: str = "columns") -> Iterator[InvalidInput]:
    """Yield what is wrong with a column; ``at`` is its path."""
    yield from _raised(f"{at}.name", check_identifier, column.name, "")
    yield from _raised(f"{at}.type", precision_scale, column.type)
    if not is_description(column.description):
        yield ValidationFailed(
            f"the description of {column.name} is one line of {DESCRIPTION_BYTES_MAX} bytes at"
            " the most",
            field=f"{at}.description",
        )


def _raised(path: str, check: Callable[..., object], *given: object) -> Iterator[InvalidInput]:
    try:
        check(*given)
    except InvalidInput as error:
        error.field = path
        yield error


@dataclass(frozen=True, slots=True)
class TableSchema:
    """What is declared for one table. Valid by construction.

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
    """For adapters: a deleted row is marked in the destination, and not removed."""
    external_id_column: str | None = None
    """For adapters: the column that names the row in the other system."""
    source_table: str | None = None
    """For adapters: the table's name in the other system."""
    append: bool = False
    """Rows are events: written once, never merged, at a fraction of the cost."""
    partition: tuple[str, ...] = ()
    """What the Iceberg table is partitioned by; see `lakesync.core.schema`."""
    keep_tombstones: bool = False
    """Deletions are never forgotten, so deltas of any age are merged: for tables into which history
    is loaded; see ``docs/adr/0008-loading-old-data.md``."""
    delete_wins: bool = False
    """An update never restores a row, only a newer insert does; see `core.merge.as_read`."""
    sort: tuple[str, ...] = ()
    """The columns by which rows are sorted within the files of the Iceberg table."""

    def __post_init__(self) -> None:
        for error in table_faults(self):
            raise error

    @property
    def partition_fields(self) -> tuple[PartitionField, ...]:
        """The parsed form of `partition`."""
        return tuple(map(partition_field, self.partition))


def schema_faults(schema: TableSchema) -> Iterator[InvalidInput]:
    """Yield everything that is wrong with an unchecked schema, columns included."""
    for place, column in enumerate(schema.columns):
        yield from column_faults(column, f"columns[{place}]")
    yield from table_faults(schema)


def table_faults(schema: TableSchema) -> Iterator[InvalidInput]:
    """Yield what is wrong with a schema whose columns are sound."""
    yield from _raised("table", check_table_name, schema.table, "")
    if schema.append and schema.delete_wins:
        yield SchemaMismatch("events are never deleted: append or deleteWins", field="append")
    names = [column.name for column in schema.columns]
    if not 0 < len(names) <= COLUMNS_MAX:
        yield SchemaMismatch(f"a schema needs 1 to {COLUMNS_MAX} columns", field="columns")
    if len(set(map(folded, names))) != len(names):
        yield SchemaMismatch("a column is declared twice, or in two spellings", field="columns")
    partition: list[str] = []
    for text in schema.partition:
        try:
            partition.append(partition_field(text).column)
        except SchemaMismatch as error:
            yield error
    external = schema.external_id_column
    for field, used in (
        ("primaryKey", schema.primary_key),
        ("partition", partition),
        ("sort", schema.sort),
        ("externalIdColumn", () if external is None else (external,)),
    ):
        if len(set(used)) != len(used):
            yield SchemaMismatch(f"{field} names a column twice", field=field)
        unknown = sorted(set(used) - {*names, *([ROW_ID] if field == "primaryKey" else ())})
        if unknown:
            yield SchemaMismatch(f"{field} names no declared column: {unknown}", field=field)
    source = schema.source_table
    if source is not None and not 1 <= len(source) <= SOURCE_TABLE_CHARACTERS_MAX:
        yield SchemaMismatch(
            f"sourceTable is 1 to {SOURCE_TABLE_CHARACTERS_MAX} characters", field="sourceTable"
        )


@dataclass(frozen=True, slots=True)
class Schemas:
    """The schemas of tables: those that the caller may know."""

    version: int
    """Increases with every schema that is registered or changed; 0 without any."""
    tables: tuple[TableSchema, ...]
    strict: bool = False
    """Only tables with a schema may be written."""


def check_delta(schema: TableSchema, delta: Delta, *, typed: bool = True) -> None:
    """Refuse a delta that does not fit its table; check the types of values only if ``typed``.

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


def shown_to_clients(
    schema: TableSchema, omitted: Collection[str] = frozenset()
) -> TableSchema | None:
    """Return the part of a schema that a client is sent: nothing about the lake or other systems.

    None if all of its columns, by their folded names, are left out of what the client is sent.
    """
    columns = tuple(
        replace(column, description="")
        for column in schema.columns
        if folded(column.name) not in omitted
    )
    return replace(
        schema, columns=columns, soft_delete=False, external_id_column=None, source_table=None,
        partition=(), sort=(), keep_tombstones=False,
    ) if columns else None  # fmt: skip


# --- a schema in its gateway's spellings ----------------------------------------------------------


def spelled_as(schema: TableSchema, table: str, columns: Iterable[str]) -> TableSchema:
    """Return a schema with the spellings in use of its table and columns, wherever it names them.

    Args:
        schema: as an administrator wrote it.
        table: the table's spelling in use.
        columns: columns in use; others stay as they are.
    """
    spelled = first_spellings(columns)

    def in_use(name: str) -> str:
        return spelled.get(folded(name), name)

    external = schema.external_id_column
    return replace(
        schema,
        table=table,
        columns=tuple(replace(column, name=in_use(column.name)) for column in schema.columns),
        primary_key=tuple(map(in_use, schema.primary_key)),
        partition=tuple(
            str(replace(field, column=in_use(field.column))) for field in schema.partition_fields
        ),
        sort=tuple(map(in_use, schema.sort)),
        external_id_column=None if external is None else in_use(external),
    )


def respelled(wanted: TableSchema, saved: TableSchema) -> dict[str, str]:
    """Return the names of a schema that were saved in another spelling, with that spelling."""
    pairs = zip(wanted.columns, saved.columns, strict=False)
    names = [(wanted.table, saved.table), *((one.name, other.name) for one, other in pairs)]
    return {one: other for one, other in names if one != other and folded(one) == folded(other)}


# --- how a schema may change ----------------------------------------------------------------------


def evolve(current: TableSchema | None, wanted: TableSchema) -> TableSchema:
    """Return the schema in force after ``wanted`` is registered; the same one, if unchanged.

    Raises:
        SchemaMismatch: a column cannot partition a table, or sort it.
        NameTaken: a column is declared under another spelling.
        Conflict: the change would break existing rows or clients; the message says how to reach the
            goal instead.
    """
    if current is not None and replace(wanted, version=current.version) == current:
        return current
    _check_layout(wanted)
    if current is None:
        return replace(wanted, version=1)
    _check_table(current, wanted)
    declared = {column.name: column for column in wanted.columns}
    spellings = first_spellings(declared)
    for column in current.columns:
        spelled = spellings.get(folded(column.name), column.name)
        if spelled != column.name:
            raise name_taken(spelled, column.name, "column")
        _check_kept(column, declared.pop(column.name, None))
    for column in declared.values():
        if not column.nullable:
            raise Conflict(
                f"the new column {column.name} must be nullable: rows exist without it; register "
                "it with nullable true",
                field=column.name,
            )
    return replace(wanted, version=current.version + 1)


def _check_layout(schema: TableSchema) -> None:
    """Refuse columns that a table cannot be partitioned or sorted by."""
    types = {column.name: column.type for column in schema.columns}
    for field in schema.partition_fields:
        check_partition_type(field, types[field.column])
    for name in schema.sort:
        check_sort_type(name, types[name])


def _check_table(current: TableSchema, wanted: TableSchema) -> None:
    """Refuse a change of what is declared for the table as a whole.

    ``softDelete``, ``sourceTable``, ``keepTombstones``, ``partition`` and ``sort`` only affect
    later work, and may change freely.
    """
    if wanted.append != current.append:
        raise Conflict("append cannot change; make a new table and copy the rows", field="append")
    if wanted.delete_wins != current.delete_wins:
        raise Conflict(
            "deleteWins cannot change: rows would appear and disappear without being changed; "
            "make a new table and copy the rows",
            field="deleteWins",
        )
    if wanted.primary_key != current.primary_key:
        raise Conflict(
            "primaryKey cannot change: other systems hold rows under it; make a new table and copy "
            "the rows",
            field="primaryKey",
        )
    if current.external_id_column not in {None, wanted.external_id_column}:
        raise Conflict(
            f"externalIdColumn cannot change: other systems know the rows by "
            f"{current.external_id_column}; make a new table and copy the rows",
            field="externalIdColumn",
        )


def _check_kept(current: Column, wanted: Column | None) -> None:
    if wanted is None:
        raise Conflict(
            f"column {current.name} cannot be removed; stop writing it instead", field=current.name
        )
    if current.nullable and not wanted.nullable:
        raise Conflict(
            f"column {current.name} cannot become non-null: rows hold null already; add a new "
            "column",
            field=current.name,
        )
    if not widens(current.type, wanted.type):
        raise Conflict(
            f"column {current.name} cannot change from {current.type} to {wanted.type}; add a new "
            "column",
            field=current.name,
        )


# --- as JSON --------------------------------------------------------------------------------------


STORED_FIELDS: Final = {
    "table": "table",
    "columns": "columns",
    "version": "version",
    "primaryKey": "primary_key",
    "softDelete": "soft_delete",
    "externalIdColumn": "external_id_column",
    "sourceTable": "source_table",
    "append": "append",
    "partition": "partition",
    "keepTombstones": "keep_tombstones",
    "deleteWins": "delete_wins",
    "sort": "sort",
}
"""The fields of a stored schema, with their names in `TableSchema`."""


def unchecked(kind: type[T], **values: object) -> T:
    """Make a frozen record without its checks."""
    made = object.__new__(kind)
    for item in fields(kind):
        value = values.get(item.name, MISSING)
        if value is MISSING:
            value = item.default if item.default_factory is MISSING else item.default_factory()
        object.__setattr__(made, item.name, value)
    return made


def schema_from_stored(body: Mapping[str, Any]) -> TableSchema:
    """Read what `schema_to_json` wrote, in any release; nothing is checked again."""
    columns = tuple(
        unchecked(
            Column,
            name=item["name"],
            type=item["type"],
            nullable=item.get("nullable", True),
            description=item.get("description", ""),
        )
        for item in body["columns"]
    )
    fields = {name: body[key] for key, name in STORED_FIELDS.items() if key in body}
    fields |= {name: tuple(value) for name, value in fields.items() if isinstance(value, list)}
    return unchecked(TableSchema, **fields | {"columns": columns})


def schema_to_json(schema: TableSchema) -> dict[str, object]:
    """Write a schema as it can be declared again, its version included."""
    optional: dict[str, object] = {
        "primaryKey": list(schema.primary_key),
        "softDelete": schema.soft_delete,
        "externalIdColumn": schema.external_id_column,
        "sourceTable": schema.source_table,
        "append": schema.append,
        "partition": list(schema.partition),
        "keepTombstones": schema.keep_tombstones,
        "deleteWins": schema.delete_wins,
        "sort": list(schema.sort),
    }
    head = {
        "table": schema.table,
        "version": schema.version,
        "columns": [*map(_column_to_json, schema.columns)],
    }
    return head | {name: value for name, value in optional.items() if value}


def schemas_to_json(schemas: Schemas) -> dict[str, object]:
    """Write schemas as ``GET /admin/schema`` returns them."""
    fields = {"schemaVersion": schemas.version, "tables": [*map(schema_to_json, schemas.tables)]}
    return fields | ({"strict": True} if schemas.strict else {})


def schemas_from_json(body: object) -> Schemas:
    """Read what `schemas_to_json` wrote.

    Raises:
        ValidationFailed: it is something else.
        SchemaMismatch: as `TableSchema`.
    """
    try:
        fields: Any = body
        listed = fields["tables"]
        stored = [schema_from_stored(item) for item in listed]
        # Made again, and so checked.
        tables = [replace(one, columns=tuple(map(replace, one.columns))) for one in stored]
        version, strict = fields["schemaVersion"], fields.get("strict", False)
    except (KeyError, TypeError, AttributeError) as exc:
        raise ValidationFailed("these are no schemas of a gateway") from exc
    if type(version) is not int or type(strict) is not bool or not isinstance(listed, list):
        raise ValidationFailed("these are no schemas of a gateway")
    return Schemas(version, tuple(tables), strict)


def _column_to_json(column: Column) -> dict[str, object]:
    fields = {"name": column.name, "type": column.type, "nullable": column.nullable}
    return fields | ({"description": column.description} if column.description else {})
