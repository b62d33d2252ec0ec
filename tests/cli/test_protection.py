"""A restored table is protected, or it is said why not yet: DynamoDB's answers, given by a stub."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import boto3
import pytest
from botocore.stub import Stubber

from lakesync.cli.doctor.protection import PROTECTION, RECOVERY, STREAM, protect
from lakesync.errors import NotFound, Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

TABLE = "restored-table"
OF_TABLE = {"TableName": TABLE}


@pytest.fixture
def client() -> Any:
    return boto3.client(
        "dynamodb", region_name="us-east-1", aws_access_key_id="a", aws_secret_access_key="b"
    )


@pytest.fixture
def stub(client: Any) -> Iterator[Stubber]:
    with Stubber(client) as stubber:
        yield stubber
        stubber.assert_no_pending_responses()


def described(stub: Stubber, status: str = "ACTIVE", **more: Any) -> None:
    stub.add_response("describe_table", {"Table": {"TableStatus": status, **more}}, OF_TABLE)


def backed_up(stub: Stubber, status: str) -> None:
    description = {
        "ContinuousBackupsStatus": "ENABLED",
        "PointInTimeRecoveryDescription": {"PointInTimeRecoveryStatus": status},
    }
    answer = {"ContinuousBackupsDescription": description}
    stub.add_response("describe_continuous_backups", answer, OF_TABLE)


RECOVER = {**OF_TABLE, "PointInTimeRecoverySpecification": {"PointInTimeRecoveryEnabled": True}}


def test_protections_that_a_restore_leaves_off_are_enabled_in_turn(
    client: Any, stub: Stubber
) -> None:
    described(stub)
    backed_up(stub, "DISABLED")
    stub.add_response("update_continuous_backups", {}, RECOVER)
    stub.add_response("update_table", {}, {**OF_TABLE, "DeletionProtectionEnabled": True})
    described(stub)
    stream = {"StreamEnabled": True, "StreamViewType": "NEW_IMAGE"}
    stub.add_response("update_table", {}, {**OF_TABLE, "StreamSpecification": stream})
    described(stub)

    assert protect(client, TABLE) == [RECOVERY, PROTECTION, STREAM]


def test_enabled_protections_are_left_unchanged(client: Any, stub: Stubber) -> None:
    described(stub, DeletionProtectionEnabled=True, StreamSpecification={"StreamEnabled": True})
    backed_up(stub, "ENABLED")

    assert protect(client, TABLE) == []


def test_a_table_still_being_restored_is_unavailable(client: Any, stub: Stubber) -> None:
    described(stub, "CREATING")
    with pytest.raises(Unavailable, match="is CREATING: a restore takes minutes to hours"):
        protect(client, TABLE)


@pytest.mark.parametrize(
    "code", ["ContinuousBackupsUnavailableException", "ResourceInUseException"]
)
def test_a_table_that_is_not_ready_is_unavailable(client: Any, stub: Stubber, code: str) -> None:
    described(stub)
    backed_up(stub, "DISABLED")
    stub.add_client_error("update_continuous_backups", code)
    with pytest.raises(Unavailable, match="try again in a minute"):
        protect(client, TABLE)


def test_an_unknown_table_is_reported_as_not_found(client: Any, stub: Stubber) -> None:
    stub.add_client_error("describe_table", "ResourceNotFoundException")
    with pytest.raises(NotFound, match=f"there is no table {TABLE}"):
        protect(client, TABLE)


def test_other_aws_errors_are_raised_unchanged(client: Any, stub: Stubber) -> None:
    stub.add_client_error("describe_table", "AccessDeniedException")
    with pytest.raises(client.exceptions.ClientError, match="AccessDeniedException"):
        protect(client, TABLE)
