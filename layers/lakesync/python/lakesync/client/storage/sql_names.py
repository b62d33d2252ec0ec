"""What a table or a column is called in SQLite."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from lakesync.client.storage.tables import PREFIX

if TYPE_CHECKING:
    from collections.abc import Collection


def quote(identifier: str) -> str:
    """Give an identifier as SQL text that can be nothing else."""
    doubled = identifier.replace('"', '""')
    return f'"{doubled}"'


def free_name(name: str, taken: Collection[str]) -> str:
    """Give SQLite's name for a name: itself, or with a digest where that is reserved or taken."""
    folded = name.lower()
    reserved = folded.startswith(("sqlite_", PREFIX))
    if not reserved and folded not in taken:
        return name
    plain = f"t_{name}" if reserved else name
    attempt = name
    while True:
        digest = hashlib.sha256(attempt.encode()).hexdigest()[:10]
        candidate = f"{plain}_{digest}"
        if candidate.lower() not in taken:
            return candidate
        attempt += "+"
