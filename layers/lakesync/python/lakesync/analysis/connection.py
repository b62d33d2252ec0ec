"""Where the gateway and its stack are, how AWS is asked about them, and what goes wrong then.

Options win over the environment, the environment over a stack file. A stack file that was found,
not given, is used only if nothing else determines the gateway: otherwise a token for one stack
could be signed with the secret of another.

An error becomes one sentence and an exit code: no traceback, and no secret. Exit codes: 0 done ·
1 refused or failed · 2 wrong usage · 3 temporary, try again · 4 no valid token or credentials ·
130 interrupted. One fault has one code, whichever command meets it: ``docs/operations.md`` lists
them.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from lakesync.errors import (
    AuthFailed,
    CursorExpired,
    Forbidden,
    InvalidInput,
    LakeSyncError,
    NotFound,
    Retry,
    Revoked,
)
from lakesync.errors import Fault as NamedFault

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
class Options:
    """The options of a command; None for those that were not given."""

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
    given: Options, environment: Mapping[str, str], folder: Path, *, needs_gateway: bool = True
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


# --- faults and exit codes ------------------------------------------------------------------------


FAILED: Final = 1
USAGE: Final = 2
LATER: Final = 3
NO_ACCESS: Final = 4
INTERRUPTED: Final = 130

_CREDENTIALS: Final = (
    "AWS credentials are missing or void: set AWS_PROFILE, or AWS_ACCESS_KEY_ID and "
    "AWS_SECRET_ACCESS_KEY"
)
_UNREACHABLE: Final = (
    "AWS cannot be reached: check the network; a local stack is started by `make up`"
)
_VOID_CREDENTIALS: Final = frozenset(
    {
        "ExpiredToken",
        "ExpiredTokenException",
        "InvalidAccessKeyId",
        "InvalidClientTokenId",
        "SignatureDoesNotMatch",
        "UnrecognizedClientException",
    }
)
_NO_CREDENTIALS: Final = frozenset(
    {"NoCredentialsError", "PartialCredentialsError", "TokenRetrievalError"}
)
_DENIED: Final = frozenset({"AccessDenied", "AccessDeniedException", "403"})
_BUSY: Final = frozenset(
    {
        "InternalError",
        "InternalFailure",
        "InternalServerError",
        "LimitExceededException",
        "ProvisionedThroughputExceededException",
        "RequestLimitExceeded",
        "ServiceUnavailable",
        "SlowDown",
        "Throttling",
        "ThrottlingException",
        "TooManyRequestsException",
    }
)
_CAUSES_MAX: Final = 8
"""Causes of an error that are looked at."""


class UsageFault(Exception):
    """The command line is not valid or incomplete; the text says what to do."""


@dataclass(frozen=True)
class Fault:
    """How a failed command ends."""

    sentence: str
    code: str
    exit_code: int
    faults: tuple[NamedFault, ...] = ()
    """Those of a declaration, each with its path."""


def fault_of(error: BaseException) -> Fault:
    """Return how a command ends that raised ``error``."""
    if isinstance(error, UsageFault):
        return Fault(str(error), "USAGE", USAGE)
    if isinstance(error, KeyboardInterrupt):
        sentence = "interrupted; what was answered so far is done, the rest may be run again"
        return Fault(sentence, "INTERRUPTED", INTERRUPTED)
    if isinstance(error, LakeSyncError):
        return _of_access(error) or _of_lakesync(error)
    if type(error).__module__.startswith("botocore"):
        return _of_aws(error)
    if isinstance(error, ModuleNotFoundError) and _is_extra(error.name or ""):
        from lakesync.installing import how_to_install

        sentence = f"the command line needs {error.name}: run {how_to_install('cli')}"
        return Fault(sentence, "USAGE", USAGE)
    if isinstance(error, OSError) and "AWS Error " in str(error):
        return _of_arrow(str(error))
    if isinstance(error, OSError):
        name = f"{error.filename}: " if error.filename else ""
        return Fault(f"{name}{error.strerror or error}", "OS_ERROR", FAILED)
    return Fault(
        f"a bug in lakesync ({type(error).__name__}); set LAKESYNC_DEBUG=1 to see where, and "
        "report it",
        "INTERNAL_ERROR",
        FAILED,
    )


def _is_extra(module: str) -> bool:
    return bool(module) and module.partition(".")[0] != "lakesync"


def is_bug_to_show(error: BaseException) -> bool:
    """Return whether the traceback is to be shown: a bug, with LAKESYNC_DEBUG set."""
    known = isinstance(
        error, LakeSyncError | UsageFault | OSError | KeyboardInterrupt | ModuleNotFoundError
    )
    return not known and bool(os.environ.get("LAKESYNC_DEBUG"))


def as_json(fault: Fault) -> str:
    faults = [{"path": path, "error": message} for path, message in fault.faults]
    shown = {"error": fault.sentence, "code": fault.code} | ({"faults": faults} if faults else {})
    return json.dumps(shown, ensure_ascii=False)


def fault_line(fault: Fault, *, for_programs: bool) -> str:
    return as_json(fault) if for_programs else f"error: {fault.sentence}"


def _of_access(error: LakeSyncError) -> Fault | None:
    """Return the fault of missing or void AWS credentials, where they caused an error of ours."""
    cause: BaseException | None = error
    for _ in range(_CAUSES_MAX):
        cause = cause.__cause__ if cause else None
        code = _code_of(cause)
        if code in _VOID_CREDENTIALS:
            return Fault(_CREDENTIALS, code, NO_ACCESS)
        if code in _DENIED:
            return Fault(f"AWS does not allow it to these credentials: {error}", code, NO_ACCESS)
        if cause is not None and type(cause).__name__ in _NO_CREDENTIALS:
            return _of_aws(cause)
    return None


def _code_of(cause: BaseException | None) -> str:
    """Return what AWS calls a failure: in an error of botocore, or of our caller of DynamoDB."""
    response = getattr(cause, "response", None)
    if isinstance(response, dict):
        return str(response.get("Error", {}).get("Code", ""))
    return str(getattr(cause, "kind", ""))


def _of_arrow(text: str) -> Fault:
    """Decide what Arrow reports of S3 by its name for it: it carries no more than a sentence."""
    name = text.partition("AWS Error ")[2].partition(" ")[0]
    if name in {"ACCESS_DENIED", "FORBIDDEN"}:
        sentence = f"AWS does not allow it to these credentials: {text.splitlines()[0]}"
        return Fault(sentence, "AccessDenied", NO_ACCESS)
    if name in {"INVALID_ACCESS_KEY_ID", "SIGNATURE_DOES_NOT_MATCH", "EXPIRED_TOKEN"}:
        return Fault(_CREDENTIALS, name, NO_ACCESS)
    if name in {"NETWORK_CONNECTION", "SLOW_DOWN", "SERVICE_UNAVAILABLE", "INTERNAL_FAILURE"}:
        return Fault(_UNREACHABLE, "UNREACHABLE", LATER)
    return Fault(f"AWS refused it: {text.splitlines()[0]}", "AWS_ERROR", FAILED)


def _of_lakesync(error: LakeSyncError) -> Fault:
    if isinstance(error, AuthFailed | Forbidden | Revoked):
        exit_code = NO_ACCESS
    elif error.retry is Retry.LATER:
        exit_code = LATER
    else:
        exit_code = FAILED
    field = f" ({error.field})" if error.field and error.field not in error.message else ""
    hint = "; pull again from 0: --since 0" if isinstance(error, CursorExpired) else ""
    faults = error.faults if isinstance(error, InvalidInput) else ()
    return Fault(f"{error.message}{field}{hint}", error.code, exit_code, faults)


def _of_aws(error: BaseException) -> Fault:
    """Decide by the name, not the class: importing botocore takes longer than most commands."""
    name = type(error).__name__
    response = getattr(error, "response", None)
    if isinstance(response, dict):
        code = str(response.get("Error", {}).get("Code", ""))
        text = str(response.get("Error", {}).get("Message", "")).rstrip(".")
        operation = getattr(error, "operation_name", "a call")
        if code in _VOID_CREDENTIALS:
            return Fault(_CREDENTIALS, code, NO_ACCESS)
        if code in _DENIED:
            sentence = f"AWS does not allow {operation} to these credentials: {text}"
            return Fault(sentence, code, NO_ACCESS)
        exit_code = LATER if code in _BUSY else FAILED
        return Fault(f"AWS refused {operation}: {text or code}", code or "AWS_ERROR", exit_code)
    if name in _NO_CREDENTIALS:
        return Fault(_CREDENTIALS, "NO_CREDENTIALS", NO_ACCESS)
    if name == "ProfileNotFound":
        return Fault(f"{error}: set AWS_PROFILE to one that exists", "NO_CREDENTIALS", NO_ACCESS)
    if name == "NoRegionError":
        sentence = "no AWS region is set: set AWS_REGION, or name it in the stack file"
        return Fault(sentence, "NO_REGION", USAGE)
    if "Connect" in name or "Timeout" in name:
        return Fault(_UNREACHABLE, "UNREACHABLE", LATER)
    return Fault(f"the request to AWS failed: {error}", "AWS_ERROR", FAILED)
