"""An account for tests whose services answer as they are told."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any, cast

import boto3
from botocore.stub import Stubber

from lakesync.analysis.connection import Aws, Connection


class Account(Aws):
    """An account whose services answer as they are told, in that order, and else refuse."""

    def __init__(self, stack: str) -> None:
        super().__init__(Connection(gateway="", stack=stack, region="eu-west-1"))
        self._stubbed: dict[str, Any] = {}
        self.stubs: dict[str, Stubber] = {}
        self.open = ExitStack()

    def client(self, service: str, *, answer_s_max: int | None = None) -> Any:  # noqa: ARG002
        if service not in self._stubbed:
            client = boto3.client(
                cast("Any", service), region_name="eu-west-1",
                aws_access_key_id="a", aws_secret_access_key="b",
            )  # fmt: skip
            self._stubbed[service] = client
            self.stubs[service] = self.open.enter_context(Stubber(client))
        return self._stubbed[service]

    def answers(self, service: str, operation: str, answer: Any, asked: Any = None) -> None:
        """Let an operation answer once, if it is asked so."""
        self.client(service)
        self.stubs[service].add_response(operation, answer, asked)

    def refuses(self, service: str, operation: str, code: str) -> None:
        self.client(service)
        self.stubs[service].add_client_error(operation, code, f"{code} it is")
