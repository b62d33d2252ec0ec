"""Schemas as JSON: strict as administrators write them, and as claims and clients hold them.

Law S4: ``docs/spec/schema.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from lakesync.core.schema import Column, Schemas, TableSchema
from lakesync.errors import ValidationFailed

if TYPE_CHECKING:
    from collections.abc import Mapping


def schema_from_json(body: object) -> TableSchema:
    """Read a schema as ``POST /admin/schema`` accepts it; strict, and the error names the path.

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
        partition=tuple(one.replace(" ", "") for one in _names(fields, "partition")),
        keep_tombstones=_typed(fields, "keepTombstones", bool, default=False),
        delete_wins=_typed(fields, "deleteWins", bool, default=False),
        sort=_names(fields, "sort"),
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
    """
    fields = _object(body, "body", {"schemaVersion", "tables"}, frozenset({"strict"}))
    tables = fields["tables"]
    if not isinstance(tables, list):
        raise ValidationFailed("tables must be a list", field="tables")
    strict = _typed(fields, "strict", bool, default=False)
    return Schemas(
        _typed(fields, "schemaVersion", int), tuple(map(schema_from_json, tables)), strict
    )


_OPTIONAL_FIELDS: Final = frozenset(
    {"version", "primaryKey", "softDelete", "externalIdColumn", "sourceTable", "append",
     "partition", "keepTombstones", "deleteWins", "sort"}
)  # fmt: skip
_OPTIONAL_OF_COLUMN: Final = frozenset({"nullable", "references", "description"})


def _column_to_json(column: Column) -> dict[str, object]:
    fields = {"name": column.name, "type": column.type, "nullable": column.nullable}
    return fields | ({"description": column.description} if column.description else {})


def _column(item: object, path: str) -> Column:
    # Relations between tables, which existing clients declare, are accepted and not used.
    fields = _object(item, path, {"name", "type"}, _OPTIONAL_OF_COLUMN)
    return Column(
        _typed(fields, "name", str, ""),
        _typed(fields, "type", str, "").replace(" ", ""),
        _typed(fields, "nullable", bool, default=True),
        _typed(fields, "description", str, ""),
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
