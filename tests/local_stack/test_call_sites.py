"""The search for places that call AWS finds the ways in which the sources do."""

from __future__ import annotations

import pytest

from tests.support.call_sites import sites_of


@pytest.mark.parametrize(
    ("source", "operations"),
    [
        ("s3.get_object(Bucket=b, Key=k)", ["GetObject"]),
        ("s3.put_object(**request)", ["PutObject"]),
        ("sts.get_caller_identity()", ["GetCallerIdentity"]),
        ("states.start_execution(stateMachineArn=a)", ["StartExecution"]),
        ("s3.get_paginator('list_objects_v2')", ["ListObjectsV2"]),
        ("retried(s3.get_object, Bucket=b, Key=k)", ["GetObject"]),
        ("self._call('describe_state_machine', stateMachineArn=a)", ["DescribeStateMachine"]),
        ("self._read('TransactGetItems', body)", ["TransactGetItems"]),
        ("self._read('Query', body)", ["Query"]),
        ("path = f'/{stage}/@connections/{one}'", ["PostToConnection"]),
        # Methods of ours.
        ("store.get_object(key)", []),
        ("store.get_object(key=key)", []),
        ("queue.send_message()", []),
        ("log.info('query')", []),
    ],
)  # fmt: skip
def test_aws_calls_are_distinguished_from_own_methods(source: str, operations: list[str]) -> None:
    assert [site.operation for site in sites_of(source, "module.py")] == operations
