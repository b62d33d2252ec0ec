"""How many deltas a kind of destination gets at once, and how often: costs of a write differ.

BigQuery changes a table by jobs that take seconds each, and allows 1,500 changes of a table a day.
Every write there is one change of each of a table's tables, however many deltas it brings, so small
batches are gathered. So it is on S3 and in Iceberg, where a row that changes has its file written
anew.
Law D15: ``docs/spec/delivery.md``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

GATHER_MS: Final = 120_000
"""From one write of a table in BigQuery to the next, unless as much waits as one takes: 720 a day,
which leaves half of a day's changes to fillings, repeats and others."""
GATHER_DELTAS_MAX: Final = 20_000
"""Deltas that one write to BigQuery, S3 or Iceberg takes, where batches are gathered."""
GATHER_BYTES_MAX: Final = 16_000_000
"""Bytes of objects or rows that one write there gathers, but for the last of them."""
GATHER_ROWS_MAX: Final = 10_000
"""Rows that one write to BigQuery, S3 or Iceberg takes, where rows go there in place of deltas."""
JOB_ROWS_MAX: Final = 200_000
"""Rows that one write there takes of what a job reads of a flow: as much is in its memory."""
JOB_BYTES_MAX: Final = 256_000_000
"""Bytes of values that one such write gathers, but for the last page of them."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How batches go to one kind of destination. The default is one by one, as soon as may be."""

    gather_ms: int = 0
    """From one write of a table to the next, unless as much waits as one takes."""
    deltas: int = 1
    """Batches that follow each other are one write while they have no more than so many."""
    content_bytes: int = 1
    """Nothing more is added to a write that has so many."""
    rows: int = 1
    """Rows of one write, in place of deltas; more where they are read more at a time."""
    job_rows: int = 0
    """Rows of one write of a job that reads a flow; 0 where its tasks write side by side."""


ONE_BY_ONE: Final = Pace()
GATHERED: Final = Pace(
    GATHER_MS, GATHER_DELTAS_MAX, GATHER_BYTES_MAX, GATHER_ROWS_MAX, JOB_ROWS_MAX
)


def pace_of(kind: str) -> Pace:
    """Give the pace of a kind of destination."""
    return GATHERED if kind in {"bigquery", "s3", "iceberg"} else ONE_BY_ONE
