"""`lakesync token`, `secret`, `access`, `clients`, `audit`: who may use a gateway, and who did."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from lakesync.analysis.connection import UsageFault
from lakesync.cli.nouns import Kind, revoked_kind
from lakesync.cli.session import Session, command, must_exist
from lakesync.core.wording import plural

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from lakesync.cli.input_output import Cell

# --- token ----------------------------------------------------------------------------------------


ROLES: Final = ("client", "operator", "admin")
_RESERVED: Final = frozenset({"sub", "gw", "role", "iat", "exp"})


@command
def token(
    session: Session,
    *,
    user: Annotated[
        str | None, typer.Option(help="The token's user; by default the client id.")
    ] = None,
    role: Annotated[
        str, typer.Option(help="client, operator (sees metrics and the audit, no rows) or admin.")
    ] = "client",
    ttl: Annotated[str, typer.Option(help="The token's lifetime: 90s, 30m, 1h, 7d.")] = "1h",
    claim: Annotated[
        list[str] | None,
        typer.Option(
            help=(
                "A further claim, name=value; sync rules may use it. A value that is JSON is that "
                """JSON, also a list: 'carriers=["UA","AA"]'; any other is text. Repeatable."""
            )
        ),
    ] = None,
) -> None:
    """Sign a token with the stack's secret, and print only the token.

    Until it expires, its holder can act as the user, and as any client id that belongs to the user
    or that nobody has used yet. Needs AWS credentials.

    Example:
      export LAKESYNC_TOKEN=$(lakesync token --client phone-1 --ttl 1h)
      lakesync token --user ann --ttl 7d
      lakesync token --client ops --role admin --claim region=eu
    """
    from lakesync.cli.session import sign, ttl_s

    if role not in ROLES:
        raise UsageFault(f"--role {role[:20]!r} is none: use {' or '.join(ROLES)}")
    connection = session.connection
    seconds = ttl_s(ttl)
    now_s = int(time.time())
    claims = _claims(claim or ()) | {
        "sub": connection.client if user is None else user,
        "gw": connection.gateway,
        "role": role,
    }
    signed = sign(claims, seconds, session.aws.jwt_secret(), now_s)
    session.out.answer({"token": signed, "expires": now_s + seconds, **claims}, signed)


def _claims(pairs: Iterable[str]) -> dict[str, object]:
    claims: dict[str, object] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name or name in _RESERVED:
            raise UsageFault(f"--claim {pair[:40]!r} is none: write name=value, not one of ours")
        try:
            claims[name] = json.loads(text)
        except ValueError:
            claims[name] = text
    return claims


# --- secret ---------------------------------------------------------------------------------------


@command
def secret(session: Session) -> None:
    """Print the gateway's own secret, with which a tenant can sign tokens for its users.

    A token that is signed with it (HS256) is valid for this gateway only. The secret is derived
    from the stack's secret and is valid as long as that; docs/operations.md describes how to
    revoke it. Needs AWS credentials.

    Example:
      lakesync secret --gateway acme
    """
    from lakesync.core.gateway_identity import gateway_secret

    gateway = session.connection.gateway
    generation = session.aws.generation(gateway)
    own = gateway_secret(session.aws.jwt_secret(), gateway, generation)
    session.out.answer({"gateway": gateway, "secret": own, "generation": generation}, own)


# --- access ---------------------------------------------------------------------------------------


LOOKED_AT_CLIENTS_MAX: Final = 10_000
"""Clients among which a revoked user is looked for: fifty requests. The gateway keeps the user of
each client, and no list of users."""


_KIND = typer.Argument(help="user or client.")
_NAME = typer.Argument(help="The user (its tokens' sub), or the client id.")
_CLIENT_ID = typer.Argument(help="A client id.")


@command
def show(session: Session, *, client_id: Annotated[str, _CLIENT_ID]) -> None:
    """Show the user of a client, and whether the client or its user is revoked.

    Example:
      lakesync access show phone-1
    """
    answer = session.admin("GET", "access", client=client_id)
    must_exist(session, answer["user"], answer["revoked"])
    names = {Kind.CLIENT: client_id, Kind.USER: answer["user"]}
    known = [
        each for each in answer["revoked"]
        if each[revoked_kind(each)] == names[revoked_kind(each)]
    ]  # fmt: skip
    owner = answer["user"] or "nobody yet: the first user who uses it"
    lines = [f"user: {owner}"]
    lines += [f"revoked: {revoked_kind(each)} {each[revoked_kind(each)]}" for each in known]
    session.out.answer(answer | {"revoked": known}, "\n".join(lines))


@command
def revoke(session: Session, *, kind: Annotated[Kind, _KIND], name: Annotated[str, _NAME]) -> None:
    """Revoke the access of a user with all of its clients, or of one client, within a minute.

    A revoked client is refused under its id only: a stolen phone that holds its user's token may
    return under another id. To prevent that, revoke the user until the token has expired. Safe to
    repeat.

    It also holds for a name that nobody has used yet, and the answer says so, because the name may
    be misspelt: "known" is false, or null where there were too many clients to look through.

    Example:
      lakesync access revoke user auth0|5f7c
      lakesync access revoke client phone-1
    """
    must_exist(session)
    session.admin("POST", "access", body={"revoke": {kind.value: name}})
    tell_revoked(session, kind, name)


@command
def restore(session: Session, *, kind: Annotated[Kind, _KIND], name: Annotated[str, _NAME]) -> None:
    """Restore the access of a revoked user or client, within a minute. Safe to repeat.

    Example:
      lakesync access restore user auth0|5f7c
    """
    listed = session.admin("GET", "access")["revoked"]
    must_exist(session, listed)
    was = any(each.get(kind.value) == name for each in listed)
    session.admin("POST", "access", body={"restore": {kind.value: name}})
    sentence = f"restored within a minute: {kind} {name}"
    if not was:
        sentence = f"nothing to restore: {kind} {name} was not revoked; see lakesync access list"
    session.out.answer({"restored": {kind.value: name}, "wasRevoked": was}, sentence)


@command
def release(session: Session, *, client_id: Annotated[str, _CLIENT_ID]) -> None:
    """Release a client id from its user: the next user who uses it becomes its owner.

    Use it when a user has another name after a change of the identity provider. The previous user
    is refused within a minute.

    Example:
      lakesync access release phone-1
    """
    user = _user_of(session, client_id)
    must_exist(session, user)
    session.admin("POST", "access", body={"release": {"client": client_id}})
    sentence = f"released: {client_id}, which was {user}'s"
    if user is None:
        sentence = f"nothing to release: the client {client_id} belonged to nobody"
    session.out.answer({"released": client_id, "user": user}, sentence)


def tell_revoked(session: Session, kind: Kind, name: str) -> None:
    """Print that a user or a client is revoked, and whether anybody of that name was ever seen."""
    known = _is_seen(session, kind, name)
    answer = {"revoked": {kind.value: name}, "known": known}
    session.out.answer(answer, f"revoked within a minute: {kind} {name}")
    gateway = session.connection.gateway
    if known is None:
        session.out.note(
            f"none of the first {LOOKED_AT_CLIENTS_MAX:,} clients of {gateway} is of the user "
            f"{name}; check the name"
        )
    elif not known:
        session.out.note(
            f"no {kind} {name} was ever seen at {gateway}: check the name, which is compared as it "
            f"is (lakesync clients list {gateway}); if it is right, it is refused when it comes"
        )


def _is_seen(session: Session, kind: Kind, name: str) -> bool | None:
    """Return whether a user or client was ever seen; None if there are too many to look through."""
    if kind is Kind.CLIENT:
        return _user_of(session, name) is not None
    for number, each in enumerate(clients_of(session)):
        if each["user"] == name:
            return True
        if number + 1 == LOOKED_AT_CLIENTS_MAX:
            return None
    return False


def _user_of(session: Session, client_id: str) -> str | None:
    user: str | None = session.admin("GET", "access", client=client_id)["user"]
    return user


def clients_of(session: Session) -> Iterator[dict[str, Any]]:
    cursor: str | None = ""
    while cursor is not None:
        page = session.admin("GET", "clients", limit="200", cursor=cursor)
        yield from page["clients"]
        cursor = page.get("next")


# --- clients --------------------------------------------------------------------------------------


_Gateway = Annotated[
    str | None,
    typer.Argument(metavar="[GATEWAY]", help="The gateway's id, if it is not set otherwise."),
]
_Client = Annotated[
    list[str],
    typer.Argument(
        metavar="[GATEWAY] CLIENT_ID",
        help="The client id; before it the gateway's id, if that is not set otherwise.",
    ),
]


@command
def list_clients(
    session: Session,
    *,
    name: _Gateway = None,
    connected: Annotated[
        bool, typer.Option("--connected", help="Show only clients with an open WebSocket.")
    ] = False,
    limit: Annotated[int, typer.Option(help="Show at most this many.", min=1)] = 1_000,
) -> None:
    """List all clients that ever used the gateway: user, connections, lag, quarantined edits.

    The position of a client is noted when it pulls, at most every 15 minutes: a client that reads
    steadily may be shown up to that far behind. "quarantined" is the number of refused edits that
    wait for a decision at the client, as it reports them. An operator's token suffices.

    Example:
      lakesync clients list --connected
      lakesync clients list acme
    """
    session.use(name)
    must_exist(session)
    wanted = (each for each in clients_of(session) if each["connections"] or not connected)
    session.out.listing(islice(wanted, limit), _CLIENT_COLUMNS, empty="no client matches")


_CLIENT_COLUMNS: Final[dict[str, Cell]] = {
    "client": "client",
    "user": "user",
    "connections": lambda each: len(each["connections"]),
    "since": lambda each: max((one["openedAt"] for one in each["connections"]), default=None),
    "behind": lambda each: (
        None if each["behindMs"] is None else f"{each['behindMs'] / 1000:,.1f} s"
    ),
    "quarantined": lambda each: each["quarantined"] or None,
    "noted": "notedAt",
    "access": lambda each: "revoked" if each["revoked"] else None,
}


@command
def disconnect(session: Session, *, client_id: _Client) -> None:
    """Close a client's WebSockets. It may connect again; to prevent that, revoke it.

    Example:
      lakesync clients disconnect phone-1
      lakesync clients disconnect acme phone-1
    """
    client = _client_of(session, client_id)
    answer = session.admin("POST", "clients", body={"disconnect": {"client": client}})
    session.out.answer(answer, f"closed: {plural(answer['disconnected'], 'connection')}")


@command
def revoke_client(session: Session, *, client_id: _Client) -> None:
    """Revoke a client's access within a minute, as `lakesync access revoke client` does.

    Its WebSockets are closed. `lakesync access restore client` restores its access.

    Example:
      lakesync clients revoke phone-1
      lakesync clients revoke acme phone-1
    """
    client = _client_of(session, client_id)
    session.admin("POST", "access", body={"revoke": {"client": client}})
    tell_revoked(session, Kind.CLIENT, client)


def _client_of(session: Session, words: list[str]) -> str:
    """Return the client id, and lead to the gateway that is named before it."""
    *gateways, client = words
    if len(gateways) > 1:
        raise UsageFault("give one client id, and before it at most the gateway's id")
    session.use(gateways[0] if gateways else None)
    must_exist(session)
    return client


# --- audit ----------------------------------------------------------------------------------------


PAGE_RECORDS: Final = 200
_WHEN: Final = "such as 2026-11-20, 2026-11-20T10:00:00Z, or an age: 30m, 24h, 7d."


@command
def audit(
    session: Session,
    *,
    name: _Gateway = None,
    since: Annotated[
        str | None, typer.Option(help=f"Show changes since this time, {_WHEN}")
    ] = None,
    until: Annotated[
        str | None, typer.Option(help=f"Show changes before this time, {_WHEN}")
    ] = None,
    who: Annotated[str | None, typer.Option(help="Show changes by this user or ARN.")] = None,
    operation: Annotated[
        str | None, typer.Option(help="Show changes by this operation: saveSyncRules, setQuota, …")
    ] = None,
    limit: Annotated[int, typer.Option(help="Show at most this many.", min=1)] = 100,
    stack_wide: Annotated[
        bool,
        typer.Option(
            "--stack-wide", help="Show changes of the whole stack. Needs AWS credentials."
        ),
    ] = False,
) -> None:
    """Show administrators' changes to the gateway: who, when, what, and the outcome; latest first.

    Changes that concern all gateways, such as a restored buffer or a replayed queue, are in the
    record of the stack: --stack-wide reads it, and needs dynamodb:Query on its AuditTable.

    With --json each record has the states before and after (large ones: digest and size). `begun`
    means an unknown outcome: the request is running or was cut off. An operator's token suffices.

    Example:
      lakesync audit acme --since 7d --who ann
      lakesync audit acme --operation saveSyncRules --json
      lakesync audit --stack-wide
    """
    if name is not None and stack_wide:
        raise UsageFault("--stack-wide concerns no single gateway: leave the name out")
    session.use(name)
    wanted = {"who": who, "operation": operation}
    wanted |= {"since": _moment(since, "--since"), "until": _moment(until, "--until")}
    page = _page_of_stack if stack_wide else _page
    columns: dict[str, Cell] = {
        **{name: name for name in ("at", "who", "role", "operation", "target")},
        "outcome": lambda each: f"{each['outcome']} {each.get('code', '')}".rstrip(),
    }
    records = list(_records(partial(page, session, wanted), limit))
    session.out.listing(records, columns, empty="no change matches")


_Page = tuple[list[dict[str, Any]], str]
"""Records, and where the next ones are; empty if there are none."""


def _records(page: Callable[[str, int], _Page], limit: int) -> Iterator[dict[str, Any]]:
    cursor = ""
    while limit > 0:
        records, cursor = page(cursor, min(limit, PAGE_RECORDS))
        yield from records
        limit -= len(records)
        if not cursor:
            return


def _page(session: Session, wanted: dict[str, str | None], cursor: str, size: int) -> _Page:
    page = session.admin("GET", "audit", **wanted, cursor=cursor, limit=str(size))
    if not cursor:
        must_exist(session, page["records"])
    return page["records"], page.get("next") or ""


def _page_of_stack(session: Session, wanted: dict[str, str | None], below: str, size: int) -> _Page:
    """Read records of the stack. No token may read them, as they concern all tenants."""
    from lakesync.cli.session import audit_of
    from lakesync.gateway.admin_changes import record_to_json
    from lakesync.ports import AuditQuery
    from lakesync.ports.stores import STACK

    audit, _ = audit_of(session)
    since, until = wanted["since"], wanted["until"]
    query = AuditQuery(
        _ms(since) if since else 0,
        _ms(until) if until else None,
        wanted["who"] or "",
        wanted["operation"] or "",
        below,
        size,
    )
    records, below = audit.records(STACK, query)
    return list(map(record_to_json, records)), below


def _ms(moment: str) -> int:
    return int(datetime.fromisoformat(moment).timestamp() * 1000)


def _moment(text: str | None, option: str) -> str | None:
    """Return a time in the form that the API accepts."""
    from lakesync.cli.session import ttl_s

    if text is None:
        return None
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        try:
            at = datetime.fromtimestamp(time.time(), UTC) - timedelta(seconds=ttl_s(text))
        except (UsageFault, OverflowError):
            raise UsageFault(f"{option} {text[:40]!r} is not a time: write it {_WHEN}") from None
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).isoformat()
