"""The progress of a checkpoint's build: all that is needed to continue it. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from lakesync.checkpoint.manifest import since_of, tables_from_json, tables_to_json
from lakesync.core.stored import WRITES, check_format

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lakesync.checkpoint.manifest import TableChunks
    from lakesync.core.clock import Stamp


@dataclass(frozen=True, slots=True)
class Progress:
    """A build in progress."""

    checkpoint: str
    epoch: str
    todo: tuple[str, ...]
    """The tables that are not done, the current one first."""
    tables: Mapping[str, TableChunks] = field(default_factory=lambda: MappingProxyType({}))
    """What is written so far."""
    last: str = ""
    """The last row of the current table that is in a chunk."""

    @property
    def since(self) -> Stamp:
        """The stamp from which the log continues."""
        return since_of(self.checkpoint)

    @property
    def rows(self) -> int:
        """How many rows are written."""
        return sum(chunks.rows for chunks in self.tables.values())

    def with_table(self, table: str, chunks: TableChunks) -> Progress:
        """Return the progress with more of a table."""
        return replace(self, tables={**self.tables, table: chunks})


def progress_to_json(progress: Progress) -> bytes:
    """Write a progress."""
    body = {
        "version": WRITES,
        "checkpoint": progress.checkpoint,
        "epoch": progress.epoch,
        "todo": list(progress.todo),
        "tables": tables_to_json(progress.tables),
        "last": progress.last,
    }
    return json.dumps(body, separators=(",", ":")).encode()


def progress_from_json(body: bytes) -> Progress:
    """Read what `progress_to_json` wrote, in any release.

    Raises:
        UpgradeRequired: only a later release can read it.
    """
    document = json.loads(body)
    check_format(document["version"], "a checkpoint under way")
    tables = tables_from_json(document["tables"])
    return Progress(
        document["checkpoint"],
        document["epoch"],
        tuple(document["todo"]),
        tables,
        document["last"],
    )
