"""The status of a gateway's tables in the lake: marks, figures, and waiting batches."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from lakesync.cli.lake import history
from lakesync.cli.lake_figures import figures
from lakesync.core.clock import stamp_ms
from lakesync.core.names import CHANGES_SUFFIX

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lakesync.cli.aws import Aws
    from lakesync.cli.lake import Lake


def table_states(
    aws: Aws, lake: Lake, gateway: str, table: str | None
) -> Iterator[dict[str, object]]:
    """Yield the report of each table.

    Args:
        aws: the stack.
        lake: the gateway's tables.
        gateway: whose claims are counted.
        table: one of them, with its history; None for all.
    """
    waiting = _waiting(aws, gateway)
    for name in lake.names_of(table):
        each = lake.table(name)
        now = figures(each, 0)
        moments = history(each)
        mark = moments[-1].applied if moments else 0
        claims, oldest_s = waiting.get(name.removesuffix(CHANGES_SUFFIX), (0, 0.0))
        yield {
            "table": name,
            "rows": now.rows,
            "files": now.files,
            "small": now.small_files,
            "delete files": now.delete_files,
            "dead rows": now.dead_rows,
            "snapshots": now.snapshots,
            "bytes": now.bytes,
            "mark": str(mark),
            "goes to": _time(mark),
            "waiting": claims,
            "lag s": round(oldest_s),
        }


def _waiting(aws: Aws, gateway: str) -> dict[str, tuple[int, float]]:
    """Return by table the number of announced batches that it lacks, and the age of the oldest."""
    pages = aws.client("s3").get_paginator("list_objects_v2")
    listed = pages.paginate(Bucket=aws.output("LakeBucket"), Prefix=f"claims/{gateway}/")
    now, waiting = time.time(), dict[str, tuple[int, float]]()
    for page in listed:
        for entry in page.get("Contents", []):
            table = entry["Key"].split("/")[2]
            count, oldest_s = waiting.get(table, (0, 0.0))
            age_s = now - entry["LastModified"].timestamp()
            waiting[table] = count + 1, max(oldest_s, age_s)
    return waiting


def _time(mark: int) -> str | None:
    if not mark:
        return None
    moment = datetime.fromtimestamp(stamp_ms(mark) / 1000, UTC)
    return moment.isoformat(timespec="seconds")
