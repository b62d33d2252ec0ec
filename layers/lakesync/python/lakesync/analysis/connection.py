"""Where the gateway and its stack are, and how they are reached: AWS, tokens, routes.

Options win over the environment, the environment over a stack file. A stack file that was found,
not given, is used only if nothing else determines the gateway: otherwise a token for one stack
could be signed with the secret of another.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from lakesync.cli.input_output import UsageFault
from lakesync.errors import NotFound, Unreachable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from lakesync.buffer.caller import DynamoCaller
    from lakesync.buffer.dynamo import DynamoBuffer
    from lakesync.buffer.items import ItemStore

# --- connection -----------------------------------------------------------------------------------


STACK_FILE: Final = Path(".local") / "stack.json"
CLIENT: Final = "cli"
"""The default client id of the command line."""
NOWHERE: Final = (
    "it is not known which gateway to use: pass --url and --gateway (or LAKESYNC_URL and "
    "LAKESYNC_GATEWAY), or --stack, or run `make up` and stay in that folder"
)


@dataclass(frozen=True, kw_only=True)
class Given:
    """The options of the command line; None for those that were not given."""

    url: str | None = None
    gateway: str | None = None
    token: str | None = field(default=None, repr=False)
    client: str | None = None
    stack: str | None = None
    stack_file: Path | None = None
    json: bool = False


@dataclass(frozen=True, kw_only=True)
class Connection:
    """How to reach a gateway and its stack; None for what is not known."""

    gateway: str
    url: str | None = None
    token: str | None = field(default=None, repr=False)
    client: str = CLIENT
    stack: str | None = None
    endpoint: str | None = None
    """The endpoint of all AWS services, if it is not AWS."""
    region: str | None = None
    jwt_secret: str | None = field(default=None, repr=False)
    sockets: str | None = None
    """Where WebSockets are opened, by a stack file: an emulator's outputs name a host in AWS."""
    own_gateway: str = ""
    """The stack file's gateway, there from the stack's start; empty if there is none."""
    emulated: bool = False
    """Whether the endpoint is from a stack file: an emulator, which accepts any credentials."""


def resolve(
    given: Given, environment: Mapping[str, str], folder: Path, *, needs_gateway: bool = True
) -> Connection:
    """Return the connection by the command line, the environment and the stack file.

    The search for a stack file begins in ``folder`` and goes on in its parents. Only commands on a
    whole stack need no gateway; it may then be empty.
    """

    def said(option: str | None, name: str) -> str | None:
        return option or environment.get(f"LAKESYNC_{name}") or None

    url, stack = said(given.url, "URL"), said(given.stack, "STACK")
    asked_for = given.stack_file or _path(environment.get("LAKESYNC_STACK_FILE"))
    path = asked_for or (None if url or stack else _nearest(folder))
    file = _read(path) if path else {}
    gateway = said(given.gateway, "GATEWAY") or file.get("gateway")
    if not gateway and needs_gateway:
        raise UsageFault("name the gateway: --gateway, or LAKESYNC_GATEWAY" if url else NOWHERE)
    return Connection(
        gateway=gateway or "",
        url=url or file.get("http"),
        # Out of a file that begins with a byte order mark, it begins so too.
        token=(said(given.token, "TOKEN") or "").removeprefix("\ufeff") or None,
        client=said(given.client, "CLIENT") or CLIENT,
        stack=stack or file.get("stack"),
        endpoint=file.get("endpoint") or environment.get("AWS_ENDPOINT_URL"),
        region=file.get("region")
        or environment.get("AWS_REGION")
        or environment.get("AWS_DEFAULT_REGION"),
        jwt_secret=file.get("jwt_secret"),
        sockets=file.get("sockets"),
        own_gateway=file.get("gateway", ""),
        emulated="endpoint" in file,
    )


def _path(text: str | None) -> Path | None:
    return Path(text) if text else None


def _nearest(folder: Path) -> Path | None:
    candidates = (parent / STACK_FILE for parent in (folder, *folder.parents))
    return next((path for path in candidates if path.is_file()), None)


def _read(path: Path) -> dict[str, str]:
    try:
        body = json.loads(path.read_text("utf-8-sig"))
    except FileNotFoundError:
        raise UsageFault(f"there is no stack file {path}: start a stack with `make up`") from None
    except (OSError, ValueError):
        raise UsageFault(f"the stack file {path} is damaged: start again with `make up`") from None
    if not isinstance(body, dict):
        raise UsageFault(f"the stack file {path} is not a JSON object")
    return {name: value for name, value in body.items() if isinstance(value, str) and value}


# --- the stack in AWS -----------------------------------------------------------------------------


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
        """Return the access key, the secret key and the session token of the clients."""
        session_credentials = self._session.get_credentials()
        if session_credentials is None:
            from botocore.exceptions import NoCredentialsError

            raise NoCredentialsError
        frozen = session_credentials.get_frozen_credentials()
        return frozen.access_key, frozen.secret_key, frozen.token

    def dynamo(self) -> DynamoCaller:
        from lakesync.buffer.caller import DynamoCaller

        return DynamoCaller(self.region or "", self.endpoint, credentials=self.credentials)

    def items(self, output: str) -> ItemStore:
        """Return the items of the table that an output of the stack names."""
        from lakesync.buffer.dynamo_items import DynamoItemStore

        return DynamoItemStore(self.output(output), self.dynamo())

    def buffer(self, table: str) -> DynamoBuffer:
        from lakesync.buffer.dynamo import DynamoBuffer

        return DynamoBuffer(table, self.dynamo())

    @property
    def stack(self) -> str:
        """The stack's name; empty if none is known."""
        return self._connection.stack or ""

    @property
    def endpoint(self) -> str | None:
        return self._connection.endpoint

    @property
    def region(self) -> str | None:
        region: str | None = self._session.region_name
        return region

    @cached_property
    def outputs(self) -> dict[str, str]:
        return {item["OutputKey"]: item["OutputValue"] for item in self._stack.get("Outputs", [])}

    @property
    def stack_id(self) -> str:
        """The stack's ARN, by which its tables and views are known."""
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
        if name not in self.outputs:
            raise UsageFault(
                f"the stack {self._connection.stack} has no output {name}: deploy this release"
            )
        return self.outputs[name]

    def jwt_secret(self) -> str:
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
        """The signers of tokens; see `lakesync.runtime.authoriser`. Empty for a plain secret."""
        try:
            document = json.loads(self._signers_text)
        except ValueError:
            return {}
        return document if isinstance(document, dict) else {}


def paged(client: Any, operation: str, key: str, **given: object) -> Iterator[Any]:
    """Yield what the pages of AWS's answer list under a key."""
    for page in client.get_paginator(operation).paginate(**given):
        yield from page.get(key, ())


def stack_resources(client: Any, stack: str) -> Iterator[dict[str, Any]]:
    """Yield CloudFormation's descriptions of the resources of a stack that were made."""
    listed = paged(client, "list_stack_resources", "StackResourceSummaries", StackName=stack)
    return (item for item in listed if item.get("PhysicalResourceId"))


def objects_under(aws: Aws, prefix: str) -> Iterator[dict[str, Any]]:
    """Yield S3's descriptions of the objects in the lake's bucket under a prefix."""
    bucket = aws.output("LakeBucket")
    return paged(aws.client("s3"), "list_objects_v2", "Contents", Bucket=bucket, Prefix=prefix)


# --- tokens ---------------------------------------------------------------------------------------


_UNITS_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_TTL: Final = re.compile(r"([0-9]{1,6})([smhd])")


def sign(claims: Mapping[str, object], ttl_s: int, secret: str, now_s: int) -> str:
    """Return an HS256 token that is valid for ``ttl_s`` seconds from ``now_s``."""
    import jwt

    return jwt.encode({**claims, "iat": now_s, "exp": now_s + ttl_s}, secret, algorithm="HS256")


def subject(token: str) -> str | None:
    """Return the subject of a token; None if it cannot be read."""
    import jwt

    try:
        claims = jwt.decode(token, options={"verify_signature": False})
    except jwt.PyJWTError:
        return None
    sub = claims.get("sub")
    return sub if isinstance(sub, str) else None


def ttl_s(text: str) -> int:
    """Read a time to live: ``90s``, ``30m``, ``1h``, ``7d``."""
    match = _TTL.fullmatch(text)
    if match is None or int(match[1]) == 0:
        raise UsageFault(f"--ttl {text[:20]!r} is not a time: write 90s, 30m, 1h or 7d")
    return int(match[1]) * _UNITS_S[match[2]]


# --- administrative routes ------------------------------------------------------------------------


TIMEOUT_S: Final = 60.0
"""Long enough for a flush."""


def call(url: str, token: str, method: str, path: str, body: object = None) -> dict[str, Any]:
    """Send a request to the gateway and return its JSON answer, or raise its error."""
    import httpx

    from lakesync.client.gateway_http import checked_token, error_of, foreign, trusted

    headers = {"Authorization": f"Bearer {checked_token(token)}"}
    try:
        answer = httpx.request(
            method, url.rstrip("/") + path,
            headers=headers, json=body, timeout=TIMEOUT_S, verify=trusted(),
        )  # fmt: skip
    except (httpx.HTTPError, httpx.InvalidURL) as exc:
        raise Unreachable(f"the gateway did not answer: {str(exc) or type(exc).__name__}") from exc
    if not answer.is_success:
        raise error_of(answer.status_code, answer.headers, answer.content)
    try:
        fields: dict[str, Any] = answer.json()
    except ValueError:
        fields = {}
    is_json = answer.headers.get("content-type", "").startswith("application/json")
    if not is_json or not isinstance(fields, dict | list):
        raise foreign(answer.status_code, answer.headers, answer.content)
    return fields
