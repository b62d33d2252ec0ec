"""Enables what a restored table lacks: recovery, deletion protection, the stream.

DynamoDB restores items, keys and encryption, but none of these
(https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/pointintimerecovery_howitworks.html).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from botocore.exceptions import ClientError, WaiterError

from lakesync.errors import NotFound, Unavailable

if TYPE_CHECKING:
    from collections.abc import Mapping

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
