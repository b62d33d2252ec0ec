"""Stages: temporary tables of one write, filled by load jobs and then read by one script."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import uuid4

from lakesync.adapters.bigquery.names import stage_columns
from lakesync.adapters.database import DeadLetter
from lakesync.adapters.sql.definition import PREFIX
from lakesync.core.schema import ROW_ID
from lakesync.errors import LakeSyncError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from lakesync.adapters.bigquery.jobs import Jobs
    from lakesync.adapters.sql.definition import Definition

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
