"""`lakesync audit`: the record of administrators' changes and their outcomes."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import urlencode

import typer

from lakesync.cli.existence import must_exist
from lakesync.cli.faults import UsageFault
from lakesync.cli.session import Session, command

if TYPE_CHECKING:
    from collections.abc import Iterator

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
    from lakesync.cli.audited import audit_of
    from lakesync.gateway.audit import record_to_json
    from lakesync.ports import AuditQuery
    from lakesync.ports.audit import STACK

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
    from lakesync.cli.tokens import ttl_s

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
