"""What is declared of a gateway itself: the schemas of its tables, and when it is flushed.

Laws S1-S4: ``docs/spec/schema.md``; D19: ``docs/spec/delivery.md``.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Annotated, Any, Final

from pydantic import Field, StrictStr

from lakesync.core.column_types import TYPES
from lakesync.core.config import (
    BUDGETS_MAX,
    EVERY_S_MAX,
    FLUSH_BYTES_MAX,
    FLUSH_BYTES_MIN,
    FORMATS,
    PARQUET,
    Flushing,
)
from lakesync.core.delta import COLUMNS_MAX
from lakesync.core.schema import (
    DESCRIPTION_BYTES_MAX,
    ROW_ID,
    SOURCE_TABLE_CHARACTERS_MAX,
    Column,
    TableSchema,
    is_description,
    schema_faults,
    unchecked,
)
from lakesync.declare import (
    COLUMN_NAME,
    NOT_GIVEN,
    TABLE_NAME,
    Declaration,
    Form,
    apart_from,
    checked,
    one_of,
    read,
    refuse,
    text_form,
    whole_number,
)
from lakesync.errors import Fault, ValidationFailed

# --- schemas --------------------------------------------------------------------------------------


def _spaceless(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("must be text")  # noqa: TRY004 - what pydantic makes a fault
    return value.replace(" ", "")


_TYPE: Final = Form(
    _spaceless,
    {
        "type": "string",
        "anyOf": [
            {"enum": [name for name in TYPES if name != "decimal"]},
            {"pattern": r"^decimal\([0-9]{1,2}, *[0-9]{1,2}\)$"},
        ],
    },
)
_DESCRIPTION: Final = text_form(
    is_description,
    f"is one line of {DESCRIPTION_BYTES_MAX} bytes at the most",
    maxLength=DESCRIPTION_BYTES_MAX,
)
_PARTITION: Final = Form(
    _spaceless,
    {"type": "string", "pattern": r"^([a-z]+\([0-9, ]*)?[A-Za-z_][A-Za-z0-9_]*\)?$"},
)
_SOURCE_TABLE: Final = text_form(
    lambda _: True, "must be text", minLength=1, maxLength=SOURCE_TABLE_CHARACTERS_MAX
)
ColumnNames = list[Annotated[str, COLUMN_NAME]]
_ROW_ID: Final = "rowId"
"""The row's id, in a key; `ROW_ID` in what is stored."""


class DeclaredColumn(Declaration):
    """One column."""

    name: Annotated[str, COLUMN_NAME]
    type: Annotated[str, _TYPE]
    nullable: bool = True
    description: Annotated[str, _DESCRIPTION] = Field(
        "", description="One line for who queries the lake: the column's comment there."
    )
    references: Any = Field(None, description="Accepted of existing clients, and not used.")

    def made(self) -> Column:
        return unchecked(Column, **{"name": "", "type": "", **self.sound()})


class DeclaredTable(Declaration):
    """What is declared for one table."""

    table: Annotated[str, TABLE_NAME]
    columns: list[DeclaredColumn] = Field(
        json_schema_extra={"minItems": 1, "maxItems": COLUMNS_MAX}
    )
    version: int = Field(1, description="Given by the gateway, from 1.")
    primary_key: ColumnNames = Field([], description="`rowId` is the row's id.")
    soft_delete: bool = False
    external_id_column: StrictStr = NOT_GIVEN
    source_table: Annotated[str, _SOURCE_TABLE] = NOT_GIVEN
    append: bool = Field(default=False, description="Rows are events: written once, never changed.")
    partition: list[Annotated[str, _PARTITION]] = Field(
        [],
        description="What the lake's table is partitioned by: a column, or a transform of one: "
        "`month(day)`, `bucket(16,customer)`, `truncate(4,code)`.",
    )
    keep_tombstones: bool = Field(default=False, description="Deletions are never forgotten.")
    delete_wins: bool = Field(
        default=False, description="No update makes a row exist. Never changes."
    )
    sort: ColumnNames = Field([])

    def made(self) -> TableSchema:
        fields = {"table": "", **self.sound()}
        columns = tuple(one.made() for one in self.columns or ())
        key = fields.get("primary_key", ())
        if _ROW_ID not in {one.name for one in columns}:
            key = tuple(ROW_ID if one == _ROW_ID else one for one in key)
        return unchecked(TableSchema, **fields | {"columns": columns, "primary_key": key})


class DeclaredStrict(Declaration):
    """Whether only tables with a schema are written."""

    strict: bool


def read_schema(body: object) -> TableSchema:
    """Read a schema as ``POST /admin/schema`` accepts it.

    Raises:
        ValidationFailed: a field is missing, unknown or malformed; names every fault.
        SchemaMismatch: the fields do not fit each other; names every fault.
    """
    declared, faults = read(DeclaredTable, body)
    schema = declared.made()
    unfit = list(schema_faults(schema))
    kind = ValidationFailed if faults or not unfit else type(unfit[0])
    further = apart_from(faults, (Fault(str(one.field), one.message) for one in unfit))
    refuse(kind, "schema", [*faults, *further])
    return schema


def read_strict(body: object) -> bool:
    """Read whether only tables with a schema are written.

    Raises:
        ValidationFailed: it is malformed.
    """
    return checked(DeclaredStrict, body, "declaration").strict


# --- flushes --------------------------------------------------------------------------------------


_BYTES: Final = whole_number(FLUSH_BYTES_MIN, FLUSH_BYTES_MAX)


class DeclaredFlushing(Declaration):
    """When a gateway is flushed; what is left out is as the stack has it."""

    every_s: Annotated[int, whole_number(0, EVERY_S_MAX)] = Field(
        0, description="How long few commits may wait; 0: until the schedule's next run."
    )
    bytes: Annotated[int, whole_number(FLUSH_BYTES_MIN, FLUSH_BYTES_MAX, zero=True)] = Field(
        0, description="From how many bytes on nothing waits; 0: the stack's threshold."
    )
    tables: dict[Annotated[str, TABLE_NAME], Annotated[int, _BYTES]] = Field(
        {},
        max_length=BUDGETS_MAX,
        description="By table, the bytes from which it is flushed before the others.",
    )
    flush_format: Annotated[str, one_of(FORMATS)] = Field(
        PARQUET, description="How objects of batches are written; JSON for people."
    )


def read_flushing(body: object) -> Flushing:
    """Read a declaration as ``POST /admin/flushing`` accepts it.

    Raises:
        ValidationFailed: it is malformed; names every fault.
    """
    declared = checked(DeclaredFlushing, body, "declaration")
    budgets = MappingProxyType(dict(declared.tables))
    return Flushing(declared.every_s, declared.bytes, budgets, declared.flush_format)
