"""Names of tables and columns: which of them are one name, and what they are called in the lake.

SQLite, Iceberg and Athena fold case, so names that differ in it alone are one name: of a gateway's
tables, and of a table's columns, the first spelling stands and another is refused. In the lake a
name is its folded form. What LakeSync keeps for itself there (columns that begin with ``_``, tables
that end in `CHANGES_SUFFIX`) carries a short digest, so that two names never meet.
Law S5: ``docs/spec/schema.md``.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Final

from lakesync.errors import NameTaken

if TYPE_CHECKING:
    from collections.abc import Iterable

CHANGES_SUFFIX: Final = "__changes"
_SAFE = re.compile(r"[a-z][a-z0-9_]*")


def folded(name: str) -> str:
    """Give what a name is one with: itself in lower case, as names are ASCII."""
    return name.lower()


def first_spellings(names: Iterable[str]) -> dict[str, str]:
    """Give the spelling that stands of each name, by its folded form."""
    spellings: dict[str, str] = {}
    for name in names:
        spellings.setdefault(folded(name), name)
    return spellings


def name_taken(name: str, first: str, of: str) -> NameTaken:
    """Give the error for a name that is there under another spelling.

    Args:
        name: as it came.
        first: the spelling that stands.
        of: what it names: ``table``, or ``column``.
    """
    return NameTaken(
        f"the {of} {name} is there already, spelled {first}: names that differ in case alone are "
        "one name; use that spelling",
        field=name if of == "column" else of,
    )


def lake_column(name: str) -> str:
    """Give the lake's name of a column."""
    return _lake_name(folded(name), "c")


def lake_table(name: str) -> str:
    """Give the lake's name of a table; never one that ends in `CHANGES_SUFFIX`."""
    name = folded(name)
    return _digested(name, "t") if name.endswith(CHANGES_SUFFIX) else _lake_name(name, "t")


def lake_database(prefix: str, gateway: str) -> str:
    """Give the catalogue database of a gateway: one for each, so that tenants stay apart.

    Gateways whose ids differ in case alone are two gateways.
    """
    return f"{prefix}_{_lake_name(gateway, 'g')}"


def _lake_name(name: str, kind: str) -> str:
    # A safe name that looks digested is digested too: else it could be another name's digest.
    if _SAFE.fullmatch(name) and not re.fullmatch(rf"{kind}_.*_[0-9a-f]{{10}}", name):
        return name
    return _digested(name, kind)


def _digested(name: str, kind: str) -> str:
    plain = re.sub(r"[^a-z0-9_]", "_", name.lower()).strip("_")
    return f"{kind}_{plain}_{hashlib.sha256(name.encode()).hexdigest()[:10]}"
