"""Claims that ask a declared destination to erase some rows completely. Pure.

They are stored beside the claims of batches, and removed once the erasure is done. Law E9:
``docs/spec/erasure.md``.
"""

from __future__ import annotations

import json
from hashlib import sha256
from typing import TYPE_CHECKING, Final

from lakesync.core.stored import WRITES, check_format

if TYPE_CHECKING:
    from collections.abc import Iterable

_END: Final = ".erase.json"
"""The suffix of their names; no claim of a batch has it."""


def rows_name(row_ids: Iterable[str]) -> str:
    """Return a name for some rows that does not contain them: another one for others."""
    return sha256(json.dumps(sorted(row_ids)).encode()).hexdigest()[:32]


def erasure_name(row_ids: Iterable[str]) -> str:
    """Return the name of a claim: equal for the same rows, different for others."""
    return rows_name(row_ids) + _END


def is_erasure(key: str) -> bool:
    """Return by its key whether a claim asks for an erasure."""
    return key.endswith(_END)


def erasure_to_json(row_ids: Iterable[str]) -> str:
    """Return a claim's text."""
    return json.dumps({"version": WRITES, "rows": sorted(row_ids)})


def read_erasure(body: bytes) -> tuple[str, ...]:
    """Read the row ids of a claim.

    Raises:
        UpgradeRequired: only a later release can read it.
    """
    stored = json.loads(body)
    check_format(stored["version"], "a claim")
    return tuple(stored["rows"])
