"""The ledger's own tables: their columns and keys, and how they are created."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lakesync.adapters.sql.definition import PREFIX
from lakesync.adapters.sql.dialect import SCOPE

if TYPE_CHECKING:
    from lakesync.adapters.sql.dialect import Cursor, Dialect

KEYS: Final = {
    "commits": (*SCOPE, "commit_stamp"),
    "rows": (*SCOPE, "row_id"),
    "marks": SCOPE,
    "dead_letters": (*SCOPE, "row_id"),
    "tables": SCOPE,
}


def definitions(dialect: Dialect) -> dict[str, dict[str, str]]:
    """Return the columns of our tables, with their SQL types."""
    key = dict.fromkeys(SCOPE, dialect.name_type)
    stamp = "BIGINT NOT NULL"
    row = {"row_id": dialect.key_bytes_type}
    text = dialect.column_type("string", in_key=False)
    return {
        "commits": key | {"commit_stamp": stamp, "records": dialect.bytes_type},
        "rows": key | row | {"state": dialect.bytes_type},
        "marks": key | {"mark": stamp, "forgotten": stamp},
        "dead_letters": key | row | {"reason": text},
        "tables": key | {"destination": dialect.name_type, "definition": text},
    }  # fmt: skip


def create_ledger(dialect: Dialect, cursor: Cursor) -> None:
    """Create our missing tables."""
    for name, columns in definitions(dialect).items():
        if dialect.existing_columns(cursor, PREFIX + name):
            continue
        lines = [f"{column} {kind}" for column, kind in columns.items()]
        lines.append(f"PRIMARY KEY ({', '.join(KEYS[name])})")
        options = dialect.updated_options if name == "rows" else ""
        cursor.execute(f"CREATE TABLE {PREFIX}{name} ({', '.join(lines)}){options}", ())
