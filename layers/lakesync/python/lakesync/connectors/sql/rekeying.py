"""Handles a change of the key, or of its type, of a table that is read by difference.

The stored ranges are in the order of the former key. They are forgotten, all rows are read as if
for the first time, and deletions are found from the rows that the gateway has from this connector.

Rules of this module
    1. The table's key is stored, and is written after the old ranges are removed: after a crash
       they are removed again.
    2. The note to search for deletions is removed once all were returned.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from lakesync.connectors.port import Change, SourcePage
from lakesync.connectors.sql.gone import rows_gone
from lakesync.connectors.storage import digest

if TYPE_CHECKING:
    from lakesync.connectors.sql.gone import RowsThere
    from lakesync.connectors.sql.plan import Plan
    from lakesync.connectors.storage import Storage

RANGES: Final = "ranges"
"""The folder of the stored ranges."""
_KEYS: Final = "keys"
_LOOKING: Final = '{"gone"'


def is_same_key(storage: Storage, plan: Plan) -> bool:
    """Return whether a table's key is unchanged; else its stored ranges are forgotten."""
    path = (_KEYS, digest(plan.settings.name))
    kinds = [plan.types[plan.place(name)] for name in plan.key]
    now: dict[str, Any] = {"key": list(plan.key), "types": kinds}
    before = storage.read(*path)
    if before is not None and now == {name: before[name] for name in now}:
        return True
    if before is not None:
        seen = (RANGES, digest(plan.settings.name))
        for name in storage.names(*seen):
            storage.remove(*seen, name)
    storage.write(now | {"looksForGone": before is not None}, *path)
    return before is None


def looks_for_gone(after: str) -> bool:
    """Return whether a cursor is of the search for deletions."""
    return after.startswith(_LOOKING)


def behind_rows(storage: Storage, plan: Plan) -> str:
    """Return the cursor after the last range: empty, or that of the search for deletions."""
    kept = storage.read(_KEYS, digest(plan.settings.name)) or {}
    return json.dumps({"gone": ""}) if kept.get("looksForGone") else ""


def gone(plan: Plan, storage: Storage, after: str, rows_there: RowsThere) -> SourcePage:
    """Return deletions of rows that the gateway has and the table does not."""
    if json.loads(after)["gone"] is None:
        return ended(storage, plan)
    row_ids, following = rows_gone(plan, storage, json.loads(after)["gone"], rows_there)
    changes = tuple(Change(row_id, None) for row_id in row_ids)
    return SourcePage(changes, json.dumps({"gone": following or None}), has_more=True)


def ended(storage: Storage, plan: Plan) -> SourcePage:
    """End the search for deletions: all of them are durable."""
    path = (_KEYS, digest(plan.settings.name))
    storage.write(storage.read(*path) | {"looksForGone": False}, *path)
    return SourcePage((), "", has_more=False)
