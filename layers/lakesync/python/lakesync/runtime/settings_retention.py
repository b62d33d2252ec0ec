"""The settings of the function that retains and forgets; see `lakesync.runtime.settings`."""

from __future__ import annotations

from dataclasses import dataclass

from lakesync.runtime.settings import BufferSettings, not_empty, positive, variable


@dataclass(frozen=True, kw_only=True)
class RetainSettings(BufferSettings):
    """What ``functions/retain`` needs."""

    lake_bucket: str = variable("LAKE_BUCKET", not_empty)
    checkpoint_every_hours: int = variable("CHECKPOINT_EVERY_HOURS", positive)
    checkpoint_chunk_bytes: int = variable("CHECKPOINT_CHUNK_BYTES", positive)
    checkpoint_lake_rows: int = variable("CHECKPOINT_LAKE_ROWS", positive)
    log_keep_days: int = variable("LOG_KEEP_DAYS", positive)
    tombstone_keep_days: int = variable("TOMBSTONE_KEEP_DAYS", positive)
