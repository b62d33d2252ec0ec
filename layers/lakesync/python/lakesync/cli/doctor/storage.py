"""Checks what protects data: backups and protection of the buffer, versions in the bucket."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from lakesync.cli.doctor.diagnosis import duration, well, wrong
from lakesync.cli.protection import PROTECTION, RECOVERY, STREAM, missing
from lakesync.core.plural import plural

if TYPE_CHECKING:
    from datetime import datetime

    from lakesync.cli.doctor.deployed import Deployed
    from lakesync.cli.doctor.diagnosis import Diagnosis

PROTECTED: Final = "prod"
"""The stage whose data outlives its stack."""


@dataclass(frozen=True, slots=True)
class Table:
    """The protection of the buffer's table in use."""

    name: str
    restored: bool
    """Whether it is used in place of the stack's own table."""
    stage: str
    off: tuple[str, ...]
    """What is off of what `protect` enables."""
    earliest: datetime | None
    """The earliest moment to restore to."""
    backups: int


def check_restore(deployed: Deployed) -> list[Diagnosis]:
    """Check that the buffer's table in use can be restored, and is protected from deletion."""
    name = deployed.aws.output("BufferTable")
    client = deployed.client("dynamodb")
    table = client.describe_table(TableName=name)["Table"]
    continuous = client.describe_continuous_backups(TableName=name)["ContinuousBackupsDescription"]
    recovery = continuous.get("PointInTimeRecoveryDescription", {})
    backups = client.list_backups(TableName=name, BackupType="ALL")["BackupSummaries"]
    facts = Table(
        name,
        restored=bool(deployed.parameters.get("BufferTableName")),
        stage=deployed.parameters.get("Stage", PROTECTED),
        off=tuple(missing(table, continuous)),
        earliest=recovery.get("EarliestRestorableDateTime"),
        backups=len(backups),
    )
    return restore_state(facts, deployed.now_s)


def restore_state(table: Table, now_s: float) -> list[Diagnosis]:
    """Decide by a table's protection; a stack for trials may be deleted with its data."""
    # A restored table belongs to no stack, whatever the stage: it is protected or it is not.
    kept = table.restored or table.stage == PROTECTED
    needed = [RECOVERY, STREAM, *([PROTECTION] if kept else [])]
    do = (
        f"lakesync restored {table.name} switches it on, and begins a new epoch; or by hand: "
        "docs/operations.md"
        if table.restored
        else "deploy again: the template has it on"
    )
    faults = [
        wrong(f"{name} is off for the table {table.name}", do)
        for name in table.off
        if name in needed
    ]
    if faults:
        return faults
    since = "" if table.earliest is None else duration(now_s - table.earliest.timestamp())
    which = "a restored table" if table.restored else "the stack's own table"
    reach = f"can be restored to any moment of the last {since}" if since else "can be restored"
    protected = "" if kept else f"; the stage {table.stage} lets it be deleted"
    more = f", and from {plural(table.backups, 'backup')}" if table.backups else ""
    return [well(f"{which}, {table.name}, {reach}{more}{protected}")]


def check_bucket(deployed: Deployed) -> list[Diagnosis]:
    """Check that deleted or overwritten objects in the lake's bucket can be restored."""
    bucket = deployed.aws.output("LakeBucket")
    client = deployed.client("s3")
    return [bucket_state(bucket, client.get_bucket_versioning(Bucket=bucket).get("Status", ""))]


def bucket_state(bucket: str, versioning: str) -> Diagnosis:
    """Decide by whether the bucket keeps versions."""
    if versioning == "Enabled":
        return well(f"{bucket} keeps versions")
    return wrong(
        f"{bucket} keeps no versions: what is deleted in the lake is gone",
        "deploy again, or aws s3api put-bucket-versioning --versioning-configuration "
        f"Status=Enabled --bucket {bucket}",
    )
