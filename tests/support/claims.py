"""Claims as the flush writes them, of batches that nobody reads."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from lakesync.core.config import WRITES

if TYPE_CHECKING:
    from tests.glue.support.files import FileStore


def claim_of(
    store: FileStore, gateway: str, table: str, number: int, *, deltas: int, size: int = 1
) -> None:
    name = f"{gateway}/{table}/{number:020d}-{number + 1:020d}"
    body = {
        "version": WRITES, "gateway": gateway, "table": table, "after": str(number),
        "last": str(number + 1), "object": f"staging/{name}.parquet", "deltas": deltas,
        "bytes": size, "append": False, "schema": None, "columns": {},
    }  # fmt: skip
    store.put(f"claims/{name}.json", json.dumps(body).encode())
