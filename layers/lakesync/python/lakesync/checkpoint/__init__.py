"""Checkpoints: all rows of a gateway as objects, and from which commit the log continues behind.

`lakesync.checkpoint.store` describes their content, writes and reads them. `lakesync.maintenance`
builds them and decides which are kept. This module says from which stamp the log is replayed.

Why this gives the right rows, if they were read during pushes
    1. The log continues from a stamp below which everything was visible before the first row was
       read: flushed, and older than any commit may take to become visible. So each row contains at
       least what was committed up to there.
    2. A row may also contain later commits. The log repeats them, and then they change nothing.
    3. A table with anything that is no longer in the log was flushed, so the buffer lists it.

Append tables keep no rows: their only source is the log, and what is trimmed is in the lake.
Law B11: ``docs/spec/commit.md``.

The job that builds a checkpoint from the lake is passed the buffer's state. The lake contains a
table up to its mark. If nothing of the table was flushed beyond that, the table is complete up to
the watermark: later batches wrote to other tables. So the log continues from the watermark, or from
the least mark of a table of which more was flushed. Reading this before the marks is safe, as both
only rise. Law L13: ``docs/spec/lake.md``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from lakesync.core.clock import VISIBLE_MS_MAX, stamp
from lakesync.core.gateway_identity import was_restored
from lakesync.errors import ValidationFailed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from lakesync.checkpoint.store import Manifest
    from lakesync.core.clock import Stamp
    from lakesync.log.read import FinalLog
    from lakesync.ports import FlushState

DOORS: Final = ("store",)
"""What other folders may import, beside the names of this module."""

# --- behind rows of the buffer --------------------------------------------------------------------


def replay_from(log: FinalLog, state: FlushState, now_ms: int) -> Stamp:
    """Return the stamp from which the log continues behind rows that are read from now on.

    Args:
        state: how far it was flushed, read after the log.
    """
    is_flushed = all(head.last_logged <= state.watermark for head in log.heads.values())
    flushed = log.top if is_flushed else state.watermark
    visible = stamp(max(now_ms - VISIBLE_MS_MAX, 0))
    return max(log.trimmed, min(flushed, visible))


def tables_with_rows(log: FinalLog, flushed: Iterable[str]) -> list[str]:
    """Return the tables that may have rows which the following log does not contain, by name.

    Args:
        flushed: the tables that were ever flushed, read after the log.
    """
    return sorted(name for name in flushed if not log.config.appends(name))


def has_events(log: FinalLog, flushed: Iterable[str]) -> bool:
    """Return whether there are tables whose only source is the log."""
    return any(log.config.appends(name) for name in flushed)


# --- behind rows of the lake ----------------------------------------------------------------------


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
