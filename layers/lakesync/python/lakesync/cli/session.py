"""One run of one command: its connection, its output, whether the gateway exists, its audit.

A gateway comes into being with the first commit, or with the first declaration: a schema, sync
rules, a destination, a connector, an action handler, a revocation, a quota. What only reads it
leaves nothing behind, except for the user of each client, so clients prove nothing. It is asked for
only where a command has found nothing, or is about to change something: it costs a request or two.
The gateway of a stack file is there from the stack's start.

Changes that the command line makes with the caller's AWS credentials are recorded as those by the
API are: before the change, with the outcome added afterwards.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import sys
import time
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Self, get_type_hints
from urllib.parse import quote, urlencode
from uuid import uuid4

import typer

from lakesync.analysis.connection import (
    CLIENT,
    Aws,
    Connection,
    Fault,
    Options,
    UsageFault,
    fault_line,
    fault_of,
    is_bug_to_show,
    resolve,
)
from lakesync.cli.input_output import Output, quiet_pipe
from lakesync.errors import (
    Forbidden,
    GatewayDeleted,
    InternalError,
    LakeSyncError,
    NotFound,
    NotTheGateway,
    Unreachable,
)
from lakesync.ports import AuditOutcome

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from lakesync.client import HttpTransport
    from lakesync.gateway.admin_changes import Audit, Who

OWN_TOKEN_S: Final = 900
"""The lifetime of a token that the command line signs for itself."""


class Session:
    """The connection, clients and output of a command. Everything is created lazily."""

    def __init__(self, given: Options) -> None:
        self._given = given
        self._open = ExitStack()
        self.out = Output(json_lines=given.json)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    @cached_property
    def connection(self) -> Connection:
        return resolve(self._given, os.environ, Path.cwd())

    @cached_property
    def place(self) -> Connection:
        """The connection to the stack; its gateway may be empty."""
        return resolve(self._given, os.environ, Path.cwd(), needs_gateway=False)

    @cached_property
    def aws(self) -> Aws:
        return Aws(self.place)

    @cached_property
    def url(self) -> str:
        return self.connection.url or self.aws.output("HttpUrl")

    def token(self, role: str = "client") -> str:
        """Return the token that was set, or else sign one for a few minutes."""
        connection = self.connection
        if connection.token:
            return connection.token
        if not connection.jwt_secret and not connection.stack:
            raise UsageFault(
                "a token is needed: set LAKESYNC_TOKEN (see `lakesync token --help`), or --stack"
            )
        claims = {"sub": connection.client, "gw": connection.gateway, "role": role}
        return sign(claims, OWN_TOKEN_S, self.aws.jwt_secret(), int(time.time()))

    @property
    def client_id(self) -> str:
        """The client id of this command: the given one, else the token's user."""
        client, token = self.connection.client, self.connection.token
        return (subject(token) if token and client == CLIENT else None) or client

    def speak_for(self, client: str) -> None:
        """Use the client id that the input names, unless another client or a token is set."""
        connection = self.connection
        if not connection.token and connection.client == CLIENT:
            self.connection = replace(connection, client=client)

    def transport(self, role: str = "client") -> HttpTransport:
        """Return the client library's transport to the gateway; the session closes it."""
        from lakesync.client import HttpTransport

        gateway = self.connection.gateway
        self.token()  # reports here what is missing for a token
        transport = HttpTransport(self.url, gateway, token=lambda: self.token(role))
        return self._open.enter_context(transport)

    def ask(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        return call(self.url, self.token("admin"), method, path, body)

    def admin(
        self,
        method: str,
        route: str,
        *names: str,
        body: object = None,
        **query: str | bool | None,
    ) -> dict[str, Any]:
        """Call ``/admin/ROUTE/GATEWAY/NAMES``; parts of the query without a value are left out."""
        below = "".join(f"/{quote(name, safe='')}" for name in names)
        given = {name: "true" if value is True else value for name, value in query.items() if value}
        asked = f"?{urlencode(given)}" if given else ""
        path = f"/admin/{route}/{self.connection.gateway}{below}{asked}"
        return self.ask(method, path, body)

    def use(self, gateway: str | None) -> None:
        """Lead to the gateway that an argument names; if None, it is found as usual."""
        if gateway is not None:
            self.connection = replace(self.place, gateway=gateway)


def _of_connection(help_: str) -> Any:
    return typer.Option(rich_help_panel="Connection", help=help_)


def _shared(
    *,
    url: Annotated[str | None, _of_connection("The gateway's address, or LAKESYNC_URL.")] = None,
    gateway: Annotated[str | None, _of_connection("The gateway's id, or LAKESYNC_GATEWAY.")] = None,
    token: Annotated[
        str | None, _of_connection("A token; prefer LAKESYNC_TOKEN, which other users cannot see.")
    ] = None,
    client: Annotated[
        str | None, _of_connection("The client id to sign for, or LAKESYNC_CLIENT.")
    ] = None,
    stack: Annotated[
        str | None, _of_connection("The CloudFormation stack's name, or LAKESYNC_STACK.")
    ] = None,
    stack_file: Annotated[
        Path | None,
        _of_connection("A stack file; by default .local/stack.json here or in a parent folder."),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print JSON, one object per line, for programs.")
    ] = False,
) -> None:
    """Define the options that every command takes."""


def command(function: Callable[..., None]) -> Callable[..., None]:
    """Turn ``function(session, …)`` into a command with shared options and one-line errors."""
    hints = get_type_hints(function, include_extras=True)
    shared = inspect.signature(_shared, eval_str=True).parameters
    own = list(inspect.signature(function).parameters.values())[1:]
    parameters = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[parameter.name])
        for parameter in own
    ]

    def run(**values: Any) -> None:
        given = Options(**{name: values.pop(name) for name in shared})
        session = Session(given)
        try:
            with quiet_pipe(), session:
                function(session, **values)
        except (typer.Exit, typer.TyperException):
            raise
        except BaseException as error:
            if is_bug_to_show(error):
                raise
            fault = _located(fault_of(error), session)
            if fault.faults and not given.json:
                session.out.table(("at", "fault"), fault.faults)
            sys.stderr.write(fault_line(fault, for_programs=given.json) + "\n")
            raise typer.Exit(fault.exit_code) from None

    run.__name__ = function.__name__
    run.__doc__ = unwrapped(function.__doc__ or "")
    run.__module__ = function.__module__
    run.__signature__ = inspect.Signature([*parameters, *shared.values()])  # type: ignore[attr-defined]  # what typer reads
    return run


def _located(fault: Fault, session: Session) -> Fault:
    """Add to the message the address that did not answer, which is usually the cause."""
    url = session.__dict__.get("url")
    if fault.code == NotTheGateway.code and url:
        return replace(fault, sentence=f"{fault.sentence} (asked: {url})")
    if fault.code != Unreachable.code or not url or url in fault.sentence:
        return fault
    hint = f"{url}: check --url and the network; a local stack is started by `make up`"
    return replace(fault, sentence=f"{fault.sentence.removesuffix('; try again')}, at {hint}")


def unwrapped(text: str) -> str:
    """Join the lines of each paragraph, for the terminal to wrap; examples keep their lines."""
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(
        part if part.startswith("Example:") else part.replace("\n", " ") for part in paragraphs
    )


# --- tokens ---------------------------------------------------------------------------------------


_UNITS_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_TTL: Final = re.compile(r"([0-9]{1,6})([smhd])")


def sign(claims: Mapping[str, object], ttl_s: int, secret: str, now_s: int) -> str:
    """Return an HS256 token that is valid for ``ttl_s`` seconds from ``now_s``."""
    import jwt

    return jwt.encode({**claims, "iat": now_s, "exp": now_s + ttl_s}, secret, algorithm="HS256")


def subject(token: str) -> str | None:
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


# --- existence of the gateway ---------------------------------------------------------------------


_DECLARED: Final = (
    ("/admin/destinations/", "destinations"),
    ("/admin/connectors/", ""),
    ("/admin/actions/", "handlers"),
    ("/admin/access/", "revoked"),
)
"""What may be declared before the first commit: each route, and the list in its answer."""
_NO_PROOF: Final = frozenset({"clients", "users", "flush"})
"""Items that a gateway's readers leave, whatever its name."""


def must_exist(session: Session, *proofs: object) -> None:
    """Refuse a gateway that does not exist, by asking it, unless there is a proof of it.

    A proof is what the command has read of the gateway, if it is not empty.
    """
    if _is_taken_for_granted(session, proofs) or _is_known(session):
        return
    raise _none(session)


def must_exist_in_stack(session: Session, *proofs: object) -> None:
    """Do the same with AWS credentials, by what the stack's table holds."""
    if _is_taken_for_granted(session, proofs):
        return
    from lakesync.buffer.dynamo_items import DynamoRemoval

    aws, gateway = session.aws, session.connection.gateway
    table = aws.output("BufferTable")
    if aws.buffer(table).config(gateway).version:
        return
    counts = DynamoRemoval(table, aws.dynamo()).count(gateway, ())
    if not any(number for kind, number in counts.items() if kind not in _NO_PROOF):
        raise _none(session)


def _is_taken_for_granted(session: Session, proofs: Iterable[object]) -> bool:
    gateway, own = session.connection.gateway, session.connection.own_gateway
    return gateway == own or any(proofs)


def _is_known(session: Session) -> bool:
    gateway = session.connection.gateway
    try:
        metrics = session.ask("GET", f"/admin/metrics/{gateway}")
    except GatewayDeleted:
        return True  # it was
    except Forbidden:
        return _holds(session.ask("GET", f"/sync/{gateway}/metrics"))
    if _holds(metrics):
        return True
    try:
        return any(_listed(session.ask("GET", path + gateway), of) for path, of in _DECLARED)
    except Forbidden:  # an operator's token; a commit or a configuration is all that it sees
        return False


def _holds(metrics: dict[str, Any]) -> bool:
    """Return whether metrics are of a gateway with a commit or a configuration.

    If its version is left out, rules keep it from the caller, so there is one.
    """
    return metrics["headHlc"] != "0" or bool(metrics.get("configVersion", True))


def _listed(answer: Any, name: str) -> Any:
    return answer[name] if name else answer


def _none(session: Session) -> NotFound:
    return NotFound(
        f"there is no gateway {session.connection.gateway}: nothing was ever pushed to it or "
        "declared for it; check the name (--gateway, LAKESYNC_GATEWAY)",
        field="gateway",
    )


# --- audit records --------------------------------------------------------------------------------


ROLE: Final = "iam"
"""The role that is recorded for changes by AWS credentials."""
LISTED_BYTES_MAX: Final = 1_024
"""The maximum size of a list of names in a state: a few such lists fit into a record."""


def audit_of(session: Session) -> tuple[Audit, Who]:
    """Return the audit of this stack, and the identity of the caller."""
    from lakesync.buffer.admin_stores import ItemAudit
    from lakesync.gateway.admin_changes import Audit, Who

    aws = session.aws
    store = ItemAudit(aws.items("AuditTable"))
    arn: str = aws.client("sts").get_caller_identity()["Arn"]
    audit = Audit(store, wall_clock=_now_ms, token=lambda: uuid4().hex)
    return audit, Who(arn, ROLE)


@contextmanager
def audited(
    session: Session,
    operation: str,
    target: str = "",
    shows: Callable[[], object] = lambda: None,
    *,
    gateway: str = "",
) -> Iterator[None]:
    """Record the change that the block makes; without the record, the block is not run.

    If the process is killed, the record stays `begun`: the outcome is not known.

    Args:
        target: what of the gateway it changes; never the id of a row.
        shows: gives the state that is changed.
        gateway: whose record it is, if not the command's; or `lakesync.ports.stores.STACK`.
    """
    audit, who = audit_of(session)
    owner = gateway or session.connection.gateway
    record = audit.begin(owner, who, operation, target, shows())
    try:
        yield
    except Exception as error:
        code = error.code if isinstance(error, LakeSyncError) else InternalError.code
        audit.end(record, AuditOutcome.FAILED, _shown(shows), code)
        raise
    audit.end(record, AuditOutcome.DONE, _shown(shows))


def listed(names: Sequence[str]) -> dict[str, object]:
    """Return a list of names for a state: their number, and the first names."""
    first, size = list[str](), 0
    for name in names:
        size += len(json.dumps(name, ensure_ascii=False).encode()) + 1
        if size > LISTED_BYTES_MAX:
            break
        first.append(name)
    return {"number": len(names), "first": first}


def _shown(shows: Callable[[], object]) -> object:
    """Return the state after a change, if it can be read: the outcome matters more."""
    from lakesync.gateway.admin_changes import NOT_KNOWN

    try:
        return shows()
    except Exception:  # noqa: BLE001 - whatever it was, the record says that it is not known
        return NOT_KNOWN


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
