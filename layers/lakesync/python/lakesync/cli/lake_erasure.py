"""The lake's part of an erasure: asked of the stack's job, and what it says is left."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from lakesync.cli.lake_job import run_job
from lakesync.core.plural import plural

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lakesync.cli.changes import LakeChanges
    from lakesync.cli.session import Session
    from lakesync.ports import ObjectStore, RowKey


def lake_changes(session: Session, gateway: str, table: str) -> LakeChanges:
    """Return all that the lake was brought of a table."""
    from lakesync.cli.changes import LakeChanges
    from lakesync.cli.lake import Lake

    return LakeChanges(Lake(session.aws, gateway), table)


def erase_from_lake(
    session: Session, objects: ObjectStore, gateway: str, keys: Sequence[RowKey], timeout_s: float
) -> dict[str, Any]:
    """Have rows of one table erased from the lake and from old versions; give the job's report.

    The rows are named in an object, which the job removes at its end: arguments of Glue jobs are
    shown to everybody who may look at them. Each erasure has one of its own, so that two of the
    same rows at once take nothing from each other. Safe to repeat.

    Raises:
        Unavailable: the job failed, or takes longer; what it did is done.
    """
    table = keys[0][0]
    body = json.dumps({"rows": sorted(row for _, row in keys)}).encode()
    request = f"maintenance/erase-{uuid4().hex}.json"
    objects.put_object(request, body, "application/json")
    return run_job(session, f"{gateway}/{table}", timeout_s, {"--erase_key": request})


def left_in_lake(report: dict[str, Any]) -> dict[str, int]:
    """Count the remaining copies, by store."""
    return {
        "lake": sum(table["left"] for table in report["tables"]),
        "old versions": report["versionsLeft"],
    }


def remarks(report: dict[str, Any]) -> Iterator[str]:
    """Report what was done, and for what is left the reason, and until when."""
    files = sum(table["files"] for table in report["tables"])
    removed = sum(table["removed"] for table in report["tables"])
    yield (
        f"the lake: {plural(removed, 'change')} removed, {plural(files, 'file')} looked into; "
        f"{plural(report['versionsRemoved'], 'old version')} removed"
    )
    if not report["tables"]:
        yield "the lake has no table of that name that is this stack's: nothing was looked into"
    for table in report["tables"]:
        if table["keptBy"]:
            names = ", ".join(table["keptBy"])
            yield f"{table['table']}: {names} may keep earlier files: drop it, and repeat this"
    if report["againMs"]:
        at = datetime.fromtimestamp(report["againMs"] / 1000, UTC)
        yield (
            "files that no snapshot names may still become named: from "
            f"{at:%Y-%m-%dT%H:%M}Z on the same command removes them"
        )
