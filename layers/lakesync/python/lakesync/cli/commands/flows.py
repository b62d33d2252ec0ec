"""`lakesync flows` and `destinations`: where rows of a gateway come from and go to.

Flows move rows from sources to destinations, as ``flows.yaml`` declares. Destinations are databases
that receive a gateway's rows, besides the lake.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from lakesync.analysis.connection import UsageFault
from lakesync.cli.input_output import read_json, read_yaml
from lakesync.cli.nouns import DESTINATIONS, FLOWS, REMOVE, end_of, errors_of
from lakesync.cli.session import Session, command
from lakesync.core.wording import plural
from lakesync.errors import Conflict, Fault, FlowRefused, NotFound

# --- flows ----------------------------------------------------------------------------------------


_NAME = typer.Argument(help="The flow's name.")
_FILE = typer.Argument(help="The flows, a YAML or JSON file; - for standard input.")
_FROM = typer.Option(
    "--from", help="Bring only what changed since this time, such as 2026-11-25T00:00:00Z."
)
_REPLACE = typer.Option(
    "--replace", help="Remove and declare again the flows that the file changes."
)
_NO_CHECK = typer.Option("--no-check", help="Declare without asking sources and databases first.")


@command
def status(session: Session, *, name: Annotated[str, _NAME]) -> None:
    """Show one flow: its state, its lag, its last error.

    Example:
      lakesync flows status orders-out
    """
    _, flows = FLOWS.declared(session)
    shown = [one for one in flows if one["name"] == name]
    if not shown:
        raise NotFound(f"there is no flow {name}; `lakesync flows list` shows those that there are")
    if FLOWS.show(session, shown):
        for error in errors_of(shown):
            session.out.note(error)


@command
def plan(session: Session, *, file: Annotated[str, _FILE]) -> None:
    """Show what the flows of a file would move, and all faults of the file; nothing is saved.

    Example:
      lakesync flows plan flows.yaml
    """
    planned = _planned(session, _read(file))
    if session.out.json_lines:
        for one in planned:
            session.out.json(one)
        return
    rows = [
        (
            one["flow"]["name"],
            end_of(one["flow"]["source"]),
            end_of(one["flow"]["destination"]),
            "new" if one["isNew"] else "unchanged",
            table["table"],
            _count(table, "rows"),
            _count(table, "passing"),
            ", ".join(table.get("columns", ())),
        )
        for one in planned
        for table in one.get("tables") or [{"table": "all"}]
    ]
    columns = ("name", "from", "to", "", "table", "rows", "would move", "columns there")
    session.out.table(columns, rows, title="What would move.")
    for one in planned:
        if "message" in one:
            session.out.note(f"{one['flow']['name']}: {one['message']}")


def _count(table: dict[str, Any], field: str) -> str:
    if field not in table:
        return "not known"
    return f"{table[field]}{' or more' if table.get('hasMore') else ''}"


@command
def apply(
    session: Session,
    *,
    file: Annotated[str, _FILE],
    replace: Annotated[bool, _REPLACE] = False,
    no_check: Annotated[bool, _NO_CHECK] = False,
) -> None:
    """Declare the flows of a file. All of them are checked before any is declared. Safe to repeat.

    Flows that the file does not name are not changed. A flow that is declared differently is
    refused, unless --replace is given: then it is removed and declared again. Sources and
    databases are asked first: nothing is declared unless they answer.

    Example:
      lakesync flows apply flows.yaml
    """
    flows = _read(file)
    check = "false" if no_check else ""
    _planned(session, flows, tolerant=replace, check=check)
    for body in flows:
        try:
            answer = session.admin("POST", "flows", body=body, check=check)
        except Conflict:
            if not replace:
                raise
            FLOWS.do(session, REMOVE, body["name"])
            answer = session.admin("POST", "flows", body=body, check=check)
        said = "declared" if answer["isNew"] else "unchanged"
        session.out.answer(answer, f"{said}: {answer['flow']['name']}")


@command
def backfill(
    session: Session, *, name: Annotated[str, _NAME], since: Annotated[str, _FROM] = ""
) -> None:
    """Read a flow's source again from its beginning, or from a time given with --from.

    Rows that are at the destination already stay as they are. A source without times refuses
    --from. Safe to repeat.

    Example:
      lakesync flows backfill orders-out
    """
    answer = FLOWS.do(session, "backfill", name, **({"from": since} if since else {}))
    session.out.answer(answer, f"{name} is being backfilled")


def _planned(
    session: Session, flows: list[Any], *, tolerant: bool = False, check: str = ""
) -> list[dict[str, Any]]:
    """Plan all flows of a file; if there are faults, print those of all of them and raise."""
    planned: list[dict[str, Any]] = []
    faults: list[Fault] = []
    for place, body in enumerate(flows):
        name = body.get("name") if isinstance(body, dict) else None
        at = name if isinstance(name, str) else f"flows[{place}]"
        if name in [one.get("name") for one in flows[:place] if isinstance(one, dict)]:
            faults.append(Fault(f"{at}.name", "another flow of the file has that name"))
        try:
            planned.append(session.admin("POST", "flows", body=body, dryRun=True, check=check))
        except FlowRefused as refused:
            faults += [Fault(f"{at}.{path}", message) for path, message in refused.faults]
        except Conflict as conflict:
            if not tolerant:
                faults.append(Fault(f"{at}.name", conflict.message))
    if faults:
        raise FlowRefused(
            f"{plural(len(faults), 'fault')} in the flows; nothing was declared", faults=faults
        )
    return planned


def _read(file: str) -> list[Any]:
    body = read_yaml(file)
    flows = body["flows"] if isinstance(body, dict) and "flows" in body else [body]
    if not isinstance(flows, list) or not flows:
        raise FlowRefused("the file declares no flow: {flows: [{name: …, source: …}]}")
    return flows


# --- destinations ---------------------------------------------------------------------------------


_DESTINATION_NAME = typer.Argument(help="The destination's name.")
_DESTINATION_FILE = typer.Argument(help="The declaration, a JSON file; - for standard input.")
_ARCHIVE = typer.Option(
    help="Move history that is older than DAYS to the bucket folder whose URL is in the secret "
    "SECRET.",
    metavar="SECRET:DAYS",
)
_NO_DATABASE_CHECK = typer.Option("--no-check", help="Declare without asking the database first.")


@command
def check(
    session: Session,
    *,
    name: Annotated[str, _DESTINATION_NAME],
    file: Annotated[str, _DESTINATION_FILE],
    archive: Annotated[str | None, _ARCHIVE] = None,
) -> None:
    """Check a declaration, list all of its faults, and ask its database; nothing is saved.

    Example:
      lakesync destinations check warehouse warehouse.json
    """
    answer = _declare(session, name, file, archive, dryRun=True)
    session.out.answer(answer, f"{name} can be declared; its database answers")


@command
def add(
    session: Session,
    *,
    name: Annotated[str, _DESTINATION_NAME],
    file: Annotated[str, _DESTINATION_FILE],
    archive: Annotated[str | None, _ARCHIVE] = None,
    no_check: Annotated[bool, _NO_DATABASE_CHECK] = False,
) -> None:
    """Declare a destination: it is filled with the existing rows, then follows. Safe to repeat.

    The file contains {"kind": "postgres", "secret": "warehouse", "tables": ["flights"]}, and
    optionally "buckets" (which rows, as in sync rules), "tableNames", "deletes" and "archive". With
    "lake": false its tables go there and not to the lake: for small data, and from the start. The
    secret holds the database's URL. Create it first in Secrets Manager, under the name
    STACK/destinations/GATEWAY/SECRET. The database is asked first: nothing is declared unless it
    answers.

    Example:
      lakesync destinations add warehouse warehouse.json
      lakesync destinations add warehouse warehouse.json --archive warehouse-archive:30
    """
    answer = _declare(session, name, file, archive, check="false" if no_check else "")
    session.out.answer(answer, f"declared: {name}; `lakesync destinations list` shows its progress")
    untyped = _untyped(session, answer)
    if untyped:
        session.out.note(
            f"{untyped}: without a schema columns are JSON text there; for types, register one "
            "first: lakesync schema put, or lakesync connectors add --schema"
        )


@command
def replay(session: Session, *, name: Annotated[str, _DESTINATION_NAME]) -> None:
    """Retry the rows that the database refused, and the claims that were set aside.

    Example:
      lakesync destinations replay warehouse
    """
    answer = DESTINATIONS.do(session, "replay", name)
    session.out.answer(answer, f"{name}: {plural(answer['tables'], 'table')} will be retried")


def _untyped(session: Session, destination: dict[str, Any]) -> str:
    """Name the tables of a destination that have no schema; empty if all have one."""
    schemas = session.admin("GET", "schema").get("tables", [])
    typed = {schema["table"].lower() for schema in schemas}
    named = destination.get("tables", [])
    if not named:
        return "all tables without a schema" if typed else "all tables"
    return ", ".join(table for table in named if table.lower() not in typed)


def _declare(
    session: Session, name: str, file: str, archive: str | None, **query: str | bool
) -> dict[str, Any]:
    body = read_json(file)
    if archive is not None and isinstance(body, dict):
        secret, _, days = archive.rpartition(":")
        if not secret or not days.isdecimal():
            raise UsageFault("--archive names a secret and days: warehouse-archive:30")
        body = body | {"archive": {"secret": secret, "afterDays": int(days)}}
    return session.admin("POST", "destinations", name, body=body, **query)
