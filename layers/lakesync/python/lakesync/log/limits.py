"""Every bound of the gateway, named with its unit; reasons in ``docs/spec/limits.md``."""

from __future__ import annotations

from dataclasses import dataclass

from lakesync.core.messages import PAGE_BYTES_MAX


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of what a gateway accepts and returns."""

    push_body_bytes_max: int = 4_500_000
    """A request body, inflated. Lambda takes 6 MB, of which base64 uses a quarter."""
    commit_items_max: int = 100
    """Items of one ``TransactWriteItems``."""
    commit_entries_bytes_max: int = 1_600_000
    """Log entries of one commit, over all shards, before deflating. With its rows they stay below
    the 4 MB of one ``TransactWriteItems``, keys and attribute names included."""
    commit_rows_bytes_max: int = 2_100_000
    """Merged rows of one commit; a push that touches more is cut into several commits."""
    entry_bytes_max: int = 380_000
    """Deltas of one commit in one shard, before deflating; an item holds 400 KB."""
    entry_rules_bytes_max: int = 5_000
    """The columns that sync rules read of the rows of one entry; beyond this a commit is cut. One
    delta may add 10,000, and together with the deltas it stays below the 400 KB of an item."""
    row_state_bytes_max: int = 380_000
    """One merged row with its stamps; an item holds 400 KB."""
    commit_deadline_ms: int = 8_000
    """How long lost races are retried before the push is answered with 503."""
    page_deltas_max: int = 10_000
    """The largest page that may be requested."""
    page_bytes_max: int = PAGE_BYTES_MAX
    """A page, unless one commit alone is larger, or the answer can carry less."""
    backpressure_bytes_max: int = 256 * 1024 * 1024
    """Unflushed data of one shard, beyond which pushes are refused until a flush."""
    backpressure_age_ms_max: int = 6 * 3600 * 1000
    """Age of the oldest unflushed commit, beyond which pushes are refused until a flush."""
    flush_threshold_bytes: int = 8 * 1024 * 1024
    """Unflushed data of one shard that starts a flush immediately."""


DEFAULT_LIMITS = Limits()
