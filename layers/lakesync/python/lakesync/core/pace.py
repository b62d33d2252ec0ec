"""How many deltas one write to a destination takes, and how often: the cost depends on its kind.

BigQuery changes a table by jobs that take seconds each, and allows 1,500 changes of a table a day.
Every write there is one change of each table involved, however many deltas it contains, so small
batches are gathered. The same holds for S3 and Iceberg, where changing a row rewrites its file.
Law D15: ``docs/spec/delivery.md``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

GATHER_MS: Final = 120_000
"""The interval between two writes of a table in BigQuery, unless a full write waits. It makes 720 a
day, so half of a day's changes are left for fillings, repeats and other uses."""
GATHER_DELTAS_MAX: Final = 20_000
"""Deltas of one write to BigQuery, S3 or Iceberg, where batches are gathered."""
GATHER_BYTES_MAX: Final = 16_000_000
"""Bytes of objects or rows that one write there gathers; the last one may exceed it."""
GATHER_ROWS_MAX: Final = 10_000
"""Rows of one write to BigQuery, S3 or Iceberg, where rows are written instead of deltas."""
JOB_ROWS_MAX: Final = 200_000
"""Rows of one write by a job that reads a flow: they are in its memory together."""
JOB_BYTES_MAX: Final = 256_000_000
"""Bytes of values that one such write gathers; the last page may exceed it."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How batches are gathered for a kind of destination. The default is one by one, at once."""

    gather_ms: int = 0
    """The interval between two writes of a table, unless a full write waits."""
    deltas: int = 1
    """Consecutive batches are combined into one write up to this number of deltas."""
    content_bytes: int = 1
    """A write of at least this size takes no more."""
    rows: int = 1
    """Rows of one write, instead of deltas; more if more are read at a time."""
    job_rows: int = 0
    """Rows of one write by a job that reads a flow; 0 if the job's tasks write in parallel."""


ONE_BY_ONE: Final = Pace()
GATHERED: Final = Pace(
    GATHER_MS, GATHER_DELTAS_MAX, GATHER_BYTES_MAX, GATHER_ROWS_MAX, JOB_ROWS_MAX
)


def pace_of(kind: str) -> Pace:
    """Return the pace of a kind of destination."""
    return GATHERED if kind in {"bigquery", "s3", "iceberg"} else ONE_BY_ONE
