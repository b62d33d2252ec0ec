"""Names of LakeSync things in the lake: lower case, safe for Glue, Athena, Spark and Trino.

The wire distinguishes ``Todos`` from ``todos`` and allows ``_private``; catalogues fold case, and a
leading ``_`` is kept for LakeSync's own columns. A name that is already safe stays as it is; any
other gets a short digest of itself, so that two names of one tenant never meet.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

CHANGES_SUFFIX: Final = "__changes"
_SAFE = re.compile(r"[a-z][a-z0-9_]*")


def lake_column(name: str) -> str:
    """Give the lake's name of a column."""
    return _lake_name(name, "c")


def lake_table(name: str) -> str:
    """Give the lake's name of a table; never one that ends in `CHANGES_SUFFIX`."""
    return _digested(name, "t") if name.endswith(CHANGES_SUFFIX) else _lake_name(name, "t")


def lake_database(prefix: str, gateway: str) -> str:
    """Give the catalogue database of a gateway: one for each, so that tenants stay apart."""
    return f"{prefix}_{_lake_name(gateway, 'g')}"


def _lake_name(name: str, kind: str) -> str:
    # A safe name that looks digested is digested too: else it could be another name's digest.
    if _SAFE.fullmatch(name) and not re.fullmatch(rf"{kind}_.*_[0-9a-f]{{10}}", name):
        return name
    return _digested(name, kind)


def _digested(name: str, kind: str) -> str:
    plain = re.sub(r"[^a-z0-9_]", "_", name.lower()).strip("_")
    return f"{kind}_{plain}_{hashlib.sha256(name.encode()).hexdigest()[:10]}"
