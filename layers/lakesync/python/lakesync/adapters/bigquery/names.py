"""Names and types in BigQuery: of tables to query, of stages, of the ledger. Pure."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from lakesync.adapters.sql.definition import DELETED_AT, PREFIX, PROPS, SYNCED_AT, digested
from lakesync.adapters.sql.definition import sql_name as common_name
from lakesync.core.column_types import precision_scale
from lakesync.core.schema import ROW_ID
from lakesync.errors import SchemaMismatch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lakesync.adapters.sql.definition import Definition

_PLAIN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PLACE: Final = re.compile(r"[A-Za-z0-9_-]+")
_RESERVED: Final = (
    "_table_", "_file_", "_partition", "_row_timestamp", "__root__", "_colidentifier",
)  # fmt: skip
"""Prefixes that BigQuery does not allow in column names."""
_NAME_PARTS_MAX: Final = 3
"""Project, dataset and table."""
_NUMERIC: Final = (29, 9)
"""Digits before and after the point of a NUMERIC; a BIGNUMERIC has 38 of each."""
_TYPES: Final[Mapping[str, str]] = {
    "string": "STRING",
    "number": "FLOAT64",
    "boolean": "BOOL",
    "json": "JSON",
    "null": "STRING",
    "integer": "INT64",
    "timestamp": "TIMESTAMP",
    "date": "DATE",
    "bytes": "BYTES",
}
_STAGED_AS_TEXT: Final = {"JSON": "STRING", "BYTES": "STRING"}
TABLES: Final = f"{PREFIX}tables"
TABLES_COLUMNS: Final = {
    "gateway": "STRING NOT NULL",
    "table_name": "STRING NOT NULL",
    "destination": "STRING NOT NULL",
    "definition": "STRING NOT NULL",
}
ROWS_COLUMNS: Final = {"row_id": "STRING NOT NULL", "state": "BYTES NOT NULL", "refusal": "STRING"}
COMMITS_COLUMNS: Final = {"commit_stamp": "INT64 NOT NULL", "records": "BYTES NOT NULL"}


@dataclass(frozen=True)
class LedgerTables:
    """The names of the ledger of one synced table: no other writer shares them."""

    rows: str
    commits: str
    mark: str


def ledger_tables(gateway: str, table: str) -> LedgerTables:
    """Return the names of a synced table's ledger."""
    digest = hashlib.sha256(f"{gateway}\0{table}".encode()).hexdigest()[:16]
    plain = re.sub(r"[^A-Za-z0-9_]", "_", table)[:40]
    names = (f"{PREFIX}{kind}_{plain}_{digest}" for kind in ("rows", "commits", "mark"))
    return LedgerTables(*names)


# --- names and types ------------------------------------------------------------------------------


def quoted(name: str) -> str:
    """Quote a name of ours or one that `destination_name` or `column_name` gave."""
    if not all(_PLACE.fullmatch(part) for part in name.split(".")):
        raise SchemaMismatch(f"{name[:80]!r} is not a valid name in BigQuery", field="sourceTable")
    return f"`{name}`"


def column_name(column: str) -> str:
    """Return a column's name in BigQuery: its own if allowed there, else one with a digest."""
    name = common_name(column)
    is_fit = _PLAIN.fullmatch(name) and not name.lower().startswith(_RESERVED)
    return name if is_fit else digested(name)


def destination_name(definition: Definition) -> str:
    """Return the name of a table to query: its own if allowed there, else one with a digest.

    Raises:
        SchemaMismatch: its project or dataset is not a valid name.
    """
    *place, name = definition.destination.split(".")
    if len(place) >= _NAME_PARTS_MAX or not all(map(_PLACE.fullmatch, place)):
        raise SchemaMismatch(
            f"{definition.destination[:80]!r}: name a table, dataset.table or "
            "project.dataset.table with sourceTable in the schema",
            field="sourceTable",
        )
    return ".".join([*place, name if _PLAIN.fullmatch(name) else digested(name)])


def column_type(type_name: str) -> str:
    """Return a column's type in BigQuery."""
    digits = precision_scale(type_name)
    if digits is None:
        return _TYPES[type_name]
    precision, scale = digits
    fits = scale <= _NUMERIC[1] and precision - scale <= _NUMERIC[0]
    return f"{'' if fits else 'BIG'}NUMERIC({precision}, {scale})"


def table_columns(definition: Definition) -> dict[str, str]:
    """Return the columns of a table to query with their types."""
    columns = {column_name(name): column_type(kind) for name, kind in stored(definition)}
    own = {PROPS: "JSON", SYNCED_AT: "TIMESTAMP", DELETED_AT: "TIMESTAMP"}
    return {ROW_ID: "STRING"} | columns | own


def stage_columns(definition: Definition) -> dict[str, str]:
    """Return the columns of a stage; its rows are commits, or rows with states and values."""
    ours = {"commit_stamp": "INT64", "records": "STRING", "state": "STRING", "refusal": "STRING"}
    values = {f"v{place}": _staged_type(kind) for place, (_, kind) in enumerate(stored(definition))}
    return ours | {ROW_ID: "STRING", DELETED_AT: "TIMESTAMP"} | values


def stored(definition: Definition) -> Sequence[tuple[str, str]]:
    """Return the existing synced columns, in order, with their types."""
    return list(definition.stored_columns().items())


def _staged_type(kind: str) -> str:
    sql_type = column_type(kind)
    return "STRING" if "NUMERIC" in sql_type else _STAGED_AS_TEXT.get(sql_type, sql_type)
