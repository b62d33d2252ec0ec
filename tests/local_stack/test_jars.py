"""The lock file of the jars, and Amazon's DynamoDB which is started from them."""

from __future__ import annotations

import boto3
import pytest

from tests.support.waiting import DEPLOYED_S
from tools.local_stack import paths
from tools.local_stack.dynamodb_local import start_dynamodb_local
from tools.local_stack.jars import DYNAMODB_LOCAL, SPARK_ICEBERG, SPARK_S3, locked

LOCK = (paths.ROOT / "requirements" / "jars.lock").read_text()


@pytest.mark.parametrize("section", [SPARK_S3, SPARK_ICEBERG, DYNAMODB_LOCAL])
def test_every_locked_file_has_a_sha256(section: str) -> None:
    artefacts = locked(LOCK, section)
    assert artefacts
    assert all(len(artefact.sha256) == 64 for artefact in artefacts)


def test_lock_section_ends_where_the_next_begins() -> None:
    text = "\n[one]\na:b:1:jar x\n\n[two]\nc:d:2:jar y\n"
    assert [artefact.file_name for artefact in locked(text, "one")] == ["b-1.jar"]


@pytest.mark.emulator
@pytest.mark.timeout(DEPLOYED_S)
def test_dynamodb_local_starts_and_refuses_what_aws_refuses() -> None:
    with start_dynamodb_local() as local:
        client = boto3.client("dynamodb", **local.client_options())
        with pytest.raises(client.exceptions.ClientError, match="between 3 and 255"):
            client.create_table(
                TableName="ab",
                KeySchema=[{"AttributeName": "pk", "KeyType": "HASH"}],
                AttributeDefinitions=[{"AttributeName": "pk", "AttributeType": "S"}],
                BillingMode="PAY_PER_REQUEST",
            )
