"""`lakesync token`, `secret`, `access`, `clients`, `audit`: who may use a gateway, and who did."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import quote, urlencode

import typer

from lakesync.cli.input_output import UsageFault
from lakesync.cli.session import Session, command, must_exist
from lakesync.core.wording import plural

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

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
    from lakesync.cli.connection import sign, ttl_s

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


class Kind(StrEnum):
    """What can be revoked."""

    USER = "user"
    CLIENT = "client"


_KIND = typer.Argument(help="user or client.")
_NAME = typer.Argument(help="The user (its tokens' sub), or the client id.")
_CLIENT_ID = typer.Argument(help="A client id.")


@command
def list_(session: Session) -> None:
    """List the revoked users and clients: since when, and by whom.

    Example:
      lakesync access list
    """
    revoked = session.ask("GET", _path(session))["revoked"]
    must_exist(session, revoked)
    if session.out.json_lines:
        for each in revoked:
            session.out.json(each)
        return
    rows = [
        (kind, each[kind], each["at"], each["by"])
        for each in revoked
        for kind in Kind
        if kind in each
    ]
    session.out.table(("kind", "name", "since", "by"), rows, title="Revoked.")


@command
def show(session: Session, *, client_id: Annotated[str, _CLIENT_ID]) -> None:
    """Show the user of a client, and whether the client or its user is revoked.

    Example:
      lakesync access show phone-1
    """
    answer = session.ask("GET", f"{_path(session)}?client={quote(client_id, safe='')}")
    must_exist(session, answer["user"], answer["revoked"])
    names = {("client", client_id), ("user", answer["user"])}
    known = [each for each in answer["revoked"] for kind in Kind if (kind, each.get(kind)) in names]
    owner = answer["user"] or "nobody yet: the first user who uses it"
    lines = [f"user: {owner}"]
    lines += [f"revoked: {kind} {each[kind]}" for each in known for kind in Kind if kind in each]
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
    session.ask("POST", _path(session), {"revoke": {kind.value: name}})
    tell_revoked(session, kind, name)


@command
def restore(session: Session, *, kind: Annotated[Kind, _KIND], name: Annotated[str, _NAME]) -> None:
    """Restore the access of a revoked user or client, within a minute. Safe to repeat.

    Example:
      lakesync access restore user auth0|5f7c
    """
    listed = session.ask("GET", _path(session))["revoked"]
    must_exist(session, listed)
    was = any(each.get(kind.value) == name for each in listed)
    session.ask("POST", _path(session), {"restore": {kind.value: name}})
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
    session.ask("POST", _path(session), {"release": {"client": client_id}})
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
    """Return the user of a client; None if nobody has used it."""
    answer = session.ask("GET", f"{_path(session)}?client={quote(client_id, safe='')}")
    user: str | None = answer["user"]
    return user


def clients_of(session: Session) -> Iterator[dict[str, Any]]:
    """Yield the clients of the gateway that ever used it, page by page."""
    cursor: str | None = ""
    while cursor is not None:
        query = urlencode({"limit": "200"} | ({"cursor": cursor} if cursor else {}))
        page = session.ask("GET", f"/admin/clients/{session.connection.gateway}?{query}")
        yield from page["clients"]
        cursor = page.get("next")


def _path(session: Session) -> str:
    return f"/admin/access/{session.connection.gateway}"


# --- clients --------------------------------------------------------------------------------------


_GATEWAY = typer.Argument(help="The gateway's id.")
_CLIENT = typer.Argument(help="The client id.")


@command
def list_clients(
    session: Session,
    *,
    name: Annotated[str, _GATEWAY],
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
      lakesync clients list acme --connected
    """
    session.connection = replace(session.place, gateway=name)
    must_exist(session)
    wanted = (each for each in clients_of(session) if each["connections"] or not connected)
    listed = list(islice(wanted, limit))
    if session.out.json_lines:
        for each in listed:
            session.out.json(each)
        return
    rows = [
        (
            each["client"], each["user"], len(each["connections"]),
            max((one["openedAt"] for one in each["connections"]), default=None),
            None if each["behindMs"] is None else f"{each['behindMs'] / 1000:,.1f} s",
            each["quarantined"] or None,
            each["notedAt"],
            "revoked" if each["revoked"] else None,
        )
        for each in listed
    ]  # fmt: skip
    columns = ("client", "user", "connections", "since", "behind", "quarantined", "noted", "access")
    session.out.table(columns, rows, empty="no client matches")


@command
def disconnect(
    session: Session, *, name: Annotated[str, _GATEWAY], client_id: Annotated[str, _CLIENT]
) -> None:
    """Close a client's WebSockets. It may connect again; to prevent that, revoke it.

    Example:
      lakesync clients disconnect acme phone-1
    """
    session.connection = replace(session.place, gateway=name)
    must_exist(session)
    body = {"disconnect": {"client": client_id}}
    answer = session.ask("POST", f"/admin/clients/{name}", body)
    session.out.answer(answer, f"closed: {plural(answer['disconnected'], 'connection')}")


@command
def revoke_client(
    session: Session, *, name: Annotated[str, _GATEWAY], client_id: Annotated[str, _CLIENT]
) -> None:
    """Revoke a client's access within a minute, as `lakesync access revoke client` does.

    Its WebSockets are closed. `lakesync access restore client` restores its access.

    Example:
      lakesync clients revoke acme phone-1
    """
    session.connection = replace(session.place, gateway=name)
    must_exist(session)
    session.ask("POST", f"/admin/access/{name}", {"revoke": {"client": client_id}})
    tell_revoked(session, Kind.CLIENT, client_id)


# --- audit ----------------------------------------------------------------------------------------


PAGE_RECORDS: Final = 200
_WHEN: Final = "such as 2026-11-20, 2026-11-20T10:00:00Z, or an age: 30m, 24h, 7d."


@command
def audit(
    session: Session,
    *,
    name: Annotated[
        str | None,
        typer.Argument(metavar="[GATEWAY]", help="The gateway's id, if it is not set otherwise."),
    ] = None,
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
    if name is not None:
        if stack_wide:
            raise UsageFault("--stack-wide concerns no single gateway: leave the name out")
        from dataclasses import replace

        session.connection = replace(session.place, gateway=name)
    wanted = {"who": who, "operation": operation}
    wanted |= {"since": _moment(since, "--since"), "until": _moment(until, "--until")}
    read = _stack_records if stack_wide else _records
    records = list(read(session, wanted, limit))
    _print(session, records)


def _print(session: Session, records: list[dict[str, Any]]) -> None:
    if session.out.json_lines:
        for record in records:
            session.out.json(record)
        return
    rows = [
        (each["at"], each["who"], each["role"], each["operation"], each["target"], _ended(each))
        for each in records
    ]
    columns = ("at", "who", "role", "operation", "target", "outcome")
    session.out.table(columns, rows, empty="no change matches")


def _records(
    session: Session, wanted: dict[str, str | None], limit: int
) -> Iterator[dict[str, Any]]:
    cursor = None
    while limit > 0:
        given = wanted | {"cursor": cursor, "limit": str(min(limit, PAGE_RECORDS))}
        query = urlencode({name: value for name, value in given.items() if value})
        page = session.ask("GET", f"/admin/audit/{session.connection.gateway}?{query}")
        if cursor is None:
            must_exist(session, page["records"])
        yield from page["records"]
        limit -= len(page["records"])
        cursor = page.get("next")
        if cursor is None:
            return


def _stack_records(
    session: Session, wanted: dict[str, str | None], limit: int
) -> Iterator[dict[str, Any]]:
    """Read records of the stack. No token may read them, as they concern all tenants."""
    from lakesync.cli.session import audit_of
    from lakesync.gateway.admin_changes import record_to_json
    from lakesync.ports import AuditQuery
    from lakesync.ports.stores import STACK

    audit, _ = audit_of(session)
    since, until, below = wanted["since"], wanted["until"], ""
    while limit > 0:
        query = AuditQuery(
            _ms(since) if since else 0,
            _ms(until) if until else None,
            wanted["who"] or "",
            wanted["operation"] or "",
            below,
            min(limit, PAGE_RECORDS),
        )
        records, below = audit.records(STACK, query)
        yield from map(record_to_json, records)
        limit -= len(records)
        if not below:
            return


def _ms(moment: str) -> int:
    return int(datetime.fromisoformat(moment).timestamp() * 1000)


def _moment(text: str | None, option: str) -> str | None:
    """Return a time in the form that the API accepts.

    Raises:
        UsageFault: the text is not a time.
    """
    from lakesync.cli.connection import ttl_s

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


def _ended(record: dict[str, Any]) -> str:
    return f"{record['outcome']} {record.get('code', '')}".rstrip()
