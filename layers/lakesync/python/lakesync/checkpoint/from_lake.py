"""The buffer's state, as passed to the job that builds a checkpoint from the lake. Pure.

The lake contains a table up to its mark. If nothing of the table was flushed beyond that, the table
is complete up to the watermark: later batches wrote to other tables. So the log continues from the
watermark, or from the least mark of a table of which more was flushed. Reading this before the
marks is safe, as both only rise. Law L13: ``docs/spec/lake.md``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lakesync.checkpoint.replay_from import tables_with_rows
from lakesync.core.epoch import was_restored
from lakesync.errors import ValidationFailed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lakesync.checkpoint.manifest import Manifest
    from lakesync.core.clock import Stamp
    from lakesync.log.final_log import FinalLog
    from lakesync.ports import FlushState


@dataclass(frozen=True, slots=True)
class Flushed:
    """How far a gateway was flushed, for a job without access to the buffer."""

    gateway: str
    epoch: str
    horizon: Stamp
    watermark: Stamp
    tombstone_horizons: Mapping[str, Stamp]
    """By table, the stamp up to which tombstones may be missing."""
    tables: Mapping[str, Stamp]
    """The merged tables that were ever flushed, each with its last commit."""

    def since(self, marks: Mapping[str, Stamp]) -> Stamp:
        """Return the stamp from which the log continues behind tables with these marks."""
        behind = (marks.get(name, 0) for name, last in self.tables.items()
                  if marks.get(name, 0) < last)  # fmt: skip
        return min(behind, default=self.watermark)


def flushed_of(log: FinalLog, state: FlushState, flushed: Mapping[str, Stamp]) -> Flushed:
    """Return for a job a log's extent, its flush state and the tables flushed, read in order."""
    tables = {name: flushed[name] for name in tables_with_rows(log, flushed)}
    horizons = log.config.tombstone_horizons
    return Flushed(log.gateway, log.epoch, log.trimmed, state.watermark, horizons, tables)


def out_of_lake(log: FinalLog, state: FlushState, latest: Manifest | None, rows_min: int) -> bool:
    """Return whether the next checkpoint should be built from the lake.

    It should if the latest one has many rows, and more was flushed since. Not after a restore: the
    lake may contain what the buffer lost.
    """
    if latest is None or was_restored(log.epoch) or state.watermark <= latest.since:
        return False
    return sum(chunks.rows for chunks in latest.tables.values()) >= rows_min


def flushed_to_json(flushed: Flushed) -> str:
    """Write it as a job's argument."""
    return json.dumps(
        {
            "gateway": flushed.gateway,
            "epoch": flushed.epoch,
            "horizon": str(flushed.horizon),
            "watermark": str(flushed.watermark),
            "tombstoneHorizons": _as_text(flushed.tombstone_horizons),
            "tables": _as_text(flushed.tables),
        },
        separators=(",", ":"),
    )


def flushed_from_json(text: str) -> Flushed:
    """Read what `flushed_to_json` wrote.

    Raises:
        ValidationFailed: it is something else.
    """
    try:
        document = json.loads(text)
        return Flushed(
            document["gateway"],
            document["epoch"],
            int(document["horizon"]),
            int(document["watermark"]),
            _as_stamps(document["tombstoneHorizons"]),
            _as_stamps(document["tables"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as exc:
        raise ValidationFailed("this is not how far a gateway was flushed") from exc


def _as_text(stamps: Mapping[str, Stamp]) -> dict[str, str]:
    return {name: str(at) for name, at in sorted(stamps.items())}


def _as_stamps(text: Mapping[str, str]) -> dict[str, Stamp]:
    return {name: int(at) for name, at in text.items()}
