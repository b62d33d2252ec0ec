"""Writes rows and commits as lines of JSON for a stage. Pure."""

from __future__ import annotations

import base64
from datetime import date, datetime
from decimal import Decimal
from itertools import groupby
from typing import TYPE_CHECKING, Any

from lakesync.adapters.bigquery.names import stored
from lakesync.adapters.sql.conversion import deleted_at
from lakesync.adapters.sql.definition import DELETED_AT
from lakesync.adapters.sql.ledger import REASON_CHARACTERS_MAX
from lakesync.adapters.sql.values import Unfit, sql_value
from lakesync.core.merge import view
from lakesync.core.schema import ROW_ID
from lakesync.wire.records import encode_records
from lakesync.wire.row_state import encode_row_state

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lakesync.adapters.database import PlacedDelta
    from lakesync.adapters.sql.definition import Definition
    from lakesync.core.merge import RowState


def commit_lines(deltas: Sequence[PlacedDelta]) -> Iterator[dict[str, Any]]:
    """Yield whole commits as lines of the stage."""
    for commit, placed in groupby(deltas, key=lambda placed: placed.position.commit):
        records = encode_records(delta for _, delta in placed)
        yield {"commit_stamp": str(commit), "records": _base64(records)}


def row_line(definition: Definition, row_id: str, state: RowState | None) -> dict[str, Any]:
    """Return a row as a line of the stage: with its values, or with the reason for its refusal.

    A state of None removes the row and its state.
    """
    if state is None:
        return {ROW_ID: row_id}
    line: dict[str, Any] = {ROW_ID: row_id, "state": _base64(encode_row_state(state))}
    values = view(definition.as_read(state))
    if values is None:
        return line | {DELETED_AT: deleted_at(state).isoformat()}
    row = {}
    for place, (name, kind) in enumerate(stored(definition)):
        try:
            value = sql_value(kind, values.get(name))
        except Unfit as exc:
            return line | {"refusal": f"column {name}: {exc}"[:REASON_CHARACTERS_MAX]}
        if value is None and name in definition.keys and name != ROW_ID:
            return line | {"refusal": f"column {name}: a primary key is never empty"}
        if value is not None:
            row[f"v{place}"] = _staged(value)
    return line | row


def _staged(value: object) -> object:
    """Return a value in a form that JSON represents exactly."""
    if isinstance(value, bytes):
        return _base64(value)
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, bool | float | str):
        return value
    return str(value) if isinstance(value, int | Decimal) else value


def _base64(raw: bytes) -> str:
    return base64.b64encode(raw).decode()
