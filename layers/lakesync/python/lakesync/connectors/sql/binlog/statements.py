"""What statements in the log say of tables: that one is to be read again.

Statements that define tables change rows without telling them. So do changes of rows that a session
logs as statements.
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
    """Give which tables a statement may have changed without telling their rows.

    Args:
        sql: the statement.
        schema: what names without one belong to.
        tables: the schemas and names of those that are captured, by how they are called here.
    """
    if _PREPARED.match(sql):
        return list(tables)  # which it changed was said when it was prepared
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
