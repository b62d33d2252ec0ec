"""Stages: temporary tables of one write, filled by load jobs and then read by one script.

A load job takes rows and commits as lines of JSON.
"""

from __future__ import annotations

import base64
import json
from contextlib import suppress
from datetime import date, datetime
from decimal import Decimal
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import uuid4

from lakesync.adapters.bigquery.statements import stage_columns, stored
from lakesync.adapters.database import DeadLetter
from lakesync.adapters.sql.ledger import REASON_CHARACTERS_MAX
from lakesync.adapters.sql.table_definition import DELETED_AT, PREFIX, deleted_at
from lakesync.adapters.typed_values import Unfit, sql_value
from lakesync.core.merge import view
from lakesync.core.schema import ROW_ID
from lakesync.errors import LakeSyncError
from lakesync.wire.records import encode_records
from lakesync.wire.row_state import encode_row_state

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from lakesync.adapters.bigquery.jobs import Jobs
    from lakesync.adapters.database import PlacedDelta
    from lakesync.adapters.sql.table_definition import Definition
    from lakesync.core.merge import RowState

STAGE_BYTES_MAX: Final = 32_000_000
"""JSON bytes that a part of a large batch loads into one stage, plus its last row or commit."""


class Stage(NamedTuple):
    """A stage that a part of a batch loaded."""

    name: str
    rows: int = 0
    """Rows that its deltas changed."""
    deltas: int = 0
    """Deltas of the commits in it."""
    refused: tuple[DeadLetter, ...] = ()


class Stages:
    """Lines that become stages, each of bounded size."""

    def __init__(self, jobs: Jobs, definition: Definition) -> None:
        self._jobs = jobs
        self._definition = definition
        self._empty()

    def _empty(self) -> None:
        self._lines: list[bytes] = []
        self._bytes = self._rows = self._deltas = 0
        self._refused: list[DeadLetter] = []

    def add(self, line: dict[str, Any], *, rows: int = 0, deltas: int = 0) -> Iterator[Stage]:
        """Add a line; return the stage if it is full now."""
        if "refusal" in line:
            letter = DeadLetter(self._definition.table, line[ROW_ID], line["refusal"])
            self._refused.append(letter)
        text = json_line(line)
        self._lines.append(text)
        self._bytes += len(text)
        self._rows += rows
        self._deltas += deltas
        if self._bytes >= STAGE_BYTES_MAX:
            yield from self.rest()

    def rest(self) -> Iterator[Stage]:
        """Load the remaining lines; return their stage, if there are any."""
        if self._lines:
            name = new_stage()
            self._jobs.load(name, stage_columns(self._definition), self._lines)
            yield Stage(name, self._rows, self._deltas, tuple(self._refused))
            self._empty()


def new_stage() -> str:
    """Return a unique name for a stage."""
    return f"{PREFIX}stage_{uuid4().hex}"


def json_line(line: object) -> bytes:
    """Return a value as a line of JSON."""
    return json.dumps(line, ensure_ascii=False).encode()


def drop_stages(jobs: Jobs, names: Iterable[str]) -> None:
    """Try to remove stages; BigQuery removes the rest after a day."""
    for name in names:
        with suppress(LakeSyncError):
            jobs.drop(name)


# --- lines of JSON --------------------------------------------------------------------------------


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
