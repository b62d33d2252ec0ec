"""The stack in AWS: its outputs, its secret, and clients for its services."""

from __future__ import annotations

import json
from functools import cached_property
from typing import TYPE_CHECKING, Any

from lakesync.cli.faults import UsageFault
from lakesync.errors import NotFound

if TYPE_CHECKING:
    from lakesync.buffer.caller import DynamoCaller
    from lakesync.buffer.dynamo import DynamoBuffer
    from lakesync.cli.connection import Connection


class Aws:
    """One stack in one account. Requests are sent only when needed."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._clients: dict[tuple[str, int | None], Any] = {}

    def client(self, service: str, *, answer_s_max: int | None = None) -> Any:
        """Return a boto3 client, always the same; one with a long time-out does not retry."""
        client = self._clients.get((service, answer_s_max))
        if client is None:
            client = self._clients[service, answer_s_max] = self._made(service, answer_s_max)
        return client

    def _made(self, service: str, answer_s_max: int | None) -> Any:
        config = None
        if answer_s_max is not None:
            from botocore.config import Config

            config = Config(read_timeout=answer_s_max, retries={"total_max_attempts": 1})
        return self._session.client(service, endpoint_url=self._connection.endpoint, config=config)

    @cached_property
    def _session(self) -> Any:
        import boto3

        # An emulator accepts any credentials; on AWS boto3's default chain finds them.
        key = "test" if self._connection.emulated else None
        return boto3.Session(
            aws_access_key_id=key, aws_secret_access_key=key, region_name=self._connection.region
        )

    def credentials(self) -> tuple[str, str, str | None]:
        """Return the access key, the secret key and the session token of the clients.

        Raises:
            botocore.exceptions.NoCredentialsError: there are none.
        """
        session_credentials = self._session.get_credentials()
        if session_credentials is None:
            from botocore.exceptions import NoCredentialsError

            raise NoCredentialsError
        frozen = session_credentials.get_frozen_credentials()
        return frozen.access_key, frozen.secret_key, frozen.token

    def dynamo(self) -> DynamoCaller:
        """Return a caller of DynamoDB with the clients' credentials."""
        from lakesync.buffer.caller import DynamoCaller

        return DynamoCaller(self.region or "", self.endpoint, credentials=self.credentials)

    def buffer(self, table: str) -> DynamoBuffer:
        """Return the buffer in a table."""
        from lakesync.buffer.dynamo import DynamoBuffer

        return DynamoBuffer(table, self.dynamo())

    @property
    def stack(self) -> str:
        """The stack's name; empty if none is known."""
        return self._connection.stack or ""

    @property
    def endpoint(self) -> str | None:
        """The endpoint of all services, if it is not AWS."""
        return self._connection.endpoint

    @property
    def region(self) -> str | None:
        """The region."""
        region: str | None = self._session.region_name
        return region

    @cached_property
    def outputs(self) -> dict[str, str]:
        """The stack's outputs.

        Raises:
            UsageFault: no stack is named.
            NotFound: there is none of that name.
        """
        return {item["OutputKey"]: item["OutputValue"] for item in self._stack.get("Outputs", [])}

    @property
    def stack_id(self) -> str:
        """The stack's ARN, by which its tables and views are known.

        Raises:
            UsageFault: no stack is named.
            NotFound: there is none of that name.
        """
        return str(self._stack["StackId"])

    @cached_property
    def _stack(self) -> dict[str, Any]:
        name = self._connection.stack
        if not name:
            raise UsageFault(
                "this needs the stack: pass --stack NAME (or LAKESYNC_STACK), or a stack file"
            )
        client = self.client("cloudformation")
        try:
            stack: dict[str, Any] = client.describe_stacks(StackName=name)["Stacks"][0]
        except client.exceptions.ClientError as exc:
            if "does not exist" in str(exc):
                raise NotFound(
                    f"there is no stack {name} in {self.region}: check --stack and AWS_REGION"
                ) from exc
            raise
        return stack

    def output(self, name: str) -> str:
        """Return one output.

        Raises:
            UsageFault: the stack has none of that name.
        """
        if name not in self.outputs:
            raise UsageFault(
                f"the stack {self._connection.stack} has no output {name}: deploy this release"
            )
        return self.outputs[name]

    def jwt_secret(self) -> str:
        """Return the secret that signs tokens, from the stack file or from Secrets Manager."""
        if self._connection.jwt_secret:
            return self._connection.jwt_secret
        document = self._signers
        return str(document["current"]) if "current" in document else self._signers_text

    def generation(self, gateway: str) -> int:
        """Return the generation of a gateway's own secret that signs tokens."""
        if self._connection.jwt_secret:
            return 0
        listed = self._signers.get("generations", {})
        in_force = listed.get(gateway) if isinstance(listed, dict) else None
        return int(in_force[0]) if in_force else 0

    @cached_property
    def _signers_text(self) -> str:
        arn = self.output("JwtSecretArn")
        text: str = self.client("secretsmanager").get_secret_value(SecretId=arn)["SecretString"]
        return text

    @property
    def _signers(self) -> dict[str, Any]:
        """The signers of tokens; see `lakesync.runtime.signers`. Empty for a plain secret."""
        try:
            document = json.loads(self._signers_text)
        except ValueError:
            return {}
        return document if isinstance(document, dict) else {}
