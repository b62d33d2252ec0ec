"""Finds the tables that must be read again because of a statement in the log.

Data definition statements change rows without logging them. So do row changes that a session logs
as statements.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

_COMMENTS: Final = re.compile(r"/\*(?!!).*?\*/|/\*!\d*|\*/|(?:--\s|#)[^\n]*", re.DOTALL)
_OF_TABLES: Final = re.compile(
    r"\s*(?:(?:ALTER|CREATE|DROP|RENAME)\b(?:\s+(?:OR\s+REPLACE|ONLINE|OFFLINE|IGNORE))*\s+TABLES?\b"
    r"|TRUNCATE\b|(?:INSERT|UPDATE|DELETE|REPLACE|LOAD|WITH|MERGE|CALL)\b)",
    re.IGNORECASE,
)
_OF_SCHEMAS: Final = re.compile(r"\s*DROP\s+(?:DATABASE|SCHEMA)\b", re.IGNORECASE)
_PREPARED: Final = re.compile(r"\s*XA\s+COMMIT\b", re.IGNORECASE)


def tables_in(sql: str, schema: str, tables: Mapping[str, tuple[str, str]]) -> list[str]:
    """Return the tables that a statement may have changed without logging their rows.

    Args:
        sql: the statement.
        schema: the default schema of names.
        tables: the schemas and names of captured tables, by their names here.
    """
    if _PREPARED.match(sql):
        return list(tables)  # its tables were reported when it was prepared
    text = _COMMENTS.sub(" ", sql)
    if _OF_SCHEMAS.match(text):
        return [name for name, (theirs, _) in tables.items() if _names(text, theirs)]
    if not _OF_TABLES.match(text):
        return []
    return [
        name
        for name, (theirs, table) in tables.items()
        if _names(text, table) and (theirs.lower() == schema.lower() or _names(text, theirs))
    ]


def _names(text: str, name: str) -> bool:
    return bool(re.search(rf"(?<![\w$]){re.escape(name)}(?![\w$])", text, re.IGNORECASE))
