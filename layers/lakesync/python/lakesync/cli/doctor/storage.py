"""What protects data: checks of it, and enabling what a restored table lacks.

Backups and protection of the buffer, versions in the bucket. DynamoDB restores items, keys and
encryption, but neither recovery, nor deletion protection, nor the stream
(https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/pointintimerecovery_howitworks.html).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from botocore.exceptions import ClientError, WaiterError

from lakesync.cli.doctor.diagnosis import duration, well, wrong
from lakesync.core.wording import plural
from lakesync.errors import NotFound, Unavailable

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from lakesync.cli.doctor.diagnosis import Deployed, Diagnosis

# --- protection of a table ------------------------------------------------------------------------


RECOVERY: Final = "point-in-time recovery"
PROTECTION: Final = "deletion protection"
STREAM: Final = "stream"
STREAM_VIEW: Final = "NEW_IMAGE"
"""The view type of the stream of the stack's table."""
_NOT_YET: Final = frozenset(
    {"ContinuousBackupsUnavailableException", "LimitExceededException", "ResourceInUseException"}
)
_POLL_S: Final = 2
_POLLS_MAX: Final = 60


def protect(client: Any, table: str) -> list[str]:
    """Protect a table, and wait until that is active; return what was off. Safe to repeat.

    Args:
        client: DynamoDB.
        table: the table's name.

    Raises:
        NotFound: there is no such table.
        Unavailable: it is not there yet, or DynamoDB is not ready to protect it.
    """
    off = missing(_described(client, table), _backups(client, table))
    try:
        if RECOVERY in off:
            wanted = {"PointInTimeRecoveryEnabled": True}
            client.update_continuous_backups(
                TableName=table, PointInTimeRecoverySpecification=wanted
            )
        if PROTECTION in off:
            client.update_table(TableName=table, DeletionProtectionEnabled=True)
            _wait(client, table)
        if STREAM in off:
            stream = {"StreamEnabled": True, "StreamViewType": STREAM_VIEW}
            client.update_table(TableName=table, StreamSpecification=stream)
            _wait(client, table)
    except ClientError as exc:
        if exc.response["Error"]["Code"] in _NOT_YET:
            raise Unavailable(
                f"DynamoDB still prepares the table {table}; try again in a minute"
            ) from exc
        raise
    return off


def missing(table: Mapping[str, Any], backups: Mapping[str, Any]) -> list[str]:
    """Return the protections that are off, by the descriptions of a table and of its backups."""
    recovery = backups.get("PointInTimeRecoveryDescription", {})
    on = {
        RECOVERY: recovery.get("PointInTimeRecoveryStatus") == "ENABLED",
        PROTECTION: bool(table.get("DeletionProtectionEnabled")),
        STREAM: bool((table.get("StreamSpecification") or {}).get("StreamEnabled")),
    }
    return [name for name, is_on in on.items() if not is_on]


def _described(client: Any, table: str) -> dict[str, Any]:
    try:
        described: dict[str, Any] = client.describe_table(TableName=table)["Table"]
    except ClientError as exc:
        if exc.response["Error"]["Code"] == "ResourceNotFoundException":
            raise NotFound(f"there is no table {table}: check its name and AWS_REGION") from exc
        raise
    if described["TableStatus"] != "ACTIVE":
        raise Unavailable(
            f"the table {table} is {described['TableStatus']}: a restore takes minutes to hours; "
            "try again when it is ACTIVE"
        )
    return described


def _backups(client: Any, table: str) -> dict[str, Any]:
    answer: dict[str, Any] = client.describe_continuous_backups(TableName=table)
    return dict(answer["ContinuousBackupsDescription"])


def _wait(client: Any, table: str) -> None:
    """Wait until a change is active: DynamoDB accepts one at a time."""
    try:
        client.get_waiter("table_exists").wait(
            TableName=table, WaiterConfig={"Delay": _POLL_S, "MaxAttempts": _POLLS_MAX}
        )
    except WaiterError as exc:
        raise Unavailable(f"the table {table} is still being changed; try again") from exc


# --- checks ---------------------------------------------------------------------------------------


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
