"""`lakesync flows` and `destinations`: where rows of a gateway come from and go to.

Flows move rows from sources to destinations, as ``flows.yaml`` declares. Destinations are databases
that receive a gateway's rows, besides the lake.
"""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

import typer

from lakesync.cli.input_output import UsageFault, read_json, read_yaml
from lakesync.cli.past import instant
from lakesync.cli.session import Session, command, must_exist
from lakesync.core.wording import plural
from lakesync.errors import Conflict, DestinationRefused, Fault, FlowRefused, NotFound

# --- listings -------------------------------------------------------------------------------------


def show_flows(session: Session, flows: list[dict[str, Any]]) -> None:
    """Print a line for each flow, and each flow's last error."""
    if session.out.json_lines:
        for each in flows:
            session.out.json(each)
        return
    rows = [
        (
            each["name"],
            end_of(each["source"]),
            end_of(each["destination"]),
            each["state"],
            f"{each['lagS']} s" if "lagS" in each else "",
            each.get("rows", ""),
            each["deadLetters"],
        )
        for each in flows
    ]
    columns = ("name", "from", "to", "state", "lag", "rows", "dead letters")
    empty = "No flows; declare some: lakesync flows apply flows.yaml"
    session.out.table(columns, rows, title="Flows.", empty=empty)
    for each in flows:
        if "lastError" in each:
            session.out.note(f"{each['name']}: {each['lastError']['error']}")


def end_of(end: Any) -> str:
    """Describe a source or a destination."""
    if not isinstance(end, dict):
        return str(end)
    if "connector" in end:
        return f"connector {end['connector']}"
    return f"{end['database']} {end['secret']}"


def count_of(table: dict[str, Any], field: str) -> str:
    """Describe a count in a plan."""
    if field not in table:
        return "not known"
    return f"{table[field]}{' or more' if table.get('hasMore') else ''}"


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
def list_(session: Session) -> None:
    """List the flows with their source, destination, state, lag, rows and dead letters.

    Declared destinations are listed too: they are flows from the gateway, fed by its flushes.

    Example:
      lakesync flows list
    """
    show_flows(session, _declared(session))


@command
def status(session: Session, *, name: Annotated[str, _NAME]) -> None:
    """Show one flow: its state, its lag, its last error.

    Example:
      lakesync flows status orders-out
    """
    shown = [one for one in _declared(session) if one["name"] == name]
    if not shown:
        raise NotFound(f"there is no flow {name}; `lakesync flows list` shows those that there are")
    show_flows(session, shown)


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
            count_of(table, "rows"),
            count_of(table, "passing"),
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
    query = "?check=false" if no_check else ""
    _planned(session, flows, tolerant=replace, check=not no_check)
    for body in flows:
        try:
            answer = _declare(session, body, query)
        except Conflict:
            if not replace:
                raise
            session.ask("DELETE", _path(session, body["name"]))
            answer = _declare(session, body, query)
        said = "declared" if answer["isNew"] else "unchanged"
        session.out.answer(answer, f"{said}: {answer['flow']['name']}")


@command
def pause(session: Session, *, name: Annotated[str, _NAME]) -> None:
    """Pause a flow. New data waits, and nothing is lost. Safe to repeat.

    Example:
      lakesync flows pause orders-out
    """
    _change(session, name, "pause", f"paused: {name}")


@command
def resume(session: Session, *, name: Annotated[str, _NAME]) -> None:
    """Resume a flow from where it was paused. Safe to repeat.

    Example:
      lakesync flows resume orders-out
    """
    _change(session, name, "resume", f"resumed: {name}")


@command
def run(session: Session, *, name: Annotated[str, _NAME]) -> None:
    """Start a poll of a flow's source now, without waiting for its schedule.

    Example:
      lakesync flows run tickets
    """
    _change(
        session, name, "run", f"started: {name}; `lakesync flows status {name}` shows its progress"
    )


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
    body = {"from": since} if since else {}
    session.out.answer(
        session.ask("POST", f"{_path(session, name)}/backfill", body), f"{name} is being backfilled"
    )


@command
def remove(session: Session, *, name: Annotated[str, _NAME]) -> None:
    """Remove a flow and the secrets of its source. Rows that it moved stay at the destination.

    What it created at its source is removed too; anything that could not be removed is reported.

    Example:
      lakesync flows remove tickets
    """
    answer = session.ask("DELETE", _path(session, name))
    session.out.answer(answer, f"removed: {name}. {answer.get('message', '')}".rstrip(". "))


def _planned(
    session: Session, flows: list[Any], *, tolerant: bool = False, check: bool = True
) -> list[dict[str, Any]]:
    """Plan all flows of a file, and print the faults of all of them.

    Raises:
        FlowRefused: there are faults.
    """
    planned: list[dict[str, Any]] = []
    asks = "" if check else "&check=false"
    faults: list[Fault] = []
    for place, body in enumerate(flows):
        name = body.get("name") if isinstance(body, dict) else None
        at = name if isinstance(name, str) else f"flows[{place}]"
        if name in [one.get("name") for one in flows[:place] if isinstance(one, dict)]:
            faults.append(Fault(f"{at}.name", "another flow of the file has that name"))
        try:
            planned.append(session.ask("POST", f"{_path(session)}?dryRun=true{asks}", body))
        except FlowRefused as refused:
            faults += [Fault(f"{at}.{path}", message) for path, message in refused.faults]
        except Conflict as conflict:
            if not tolerant:
                faults.append(Fault(f"{at}.name", conflict.message))
    if faults:
        if not session.out.json_lines:
            session.out.table(("at", "fault"), faults)
        raise FlowRefused(
            f"{plural(len(faults), 'fault')} in the flows; nothing was declared", faults=faults
        )
    return planned


def _declared(session: Session) -> list[dict[str, Any]]:
    flows: list[dict[str, Any]] = session.ask("GET", _path(session))["flows"]
    must_exist(session, flows)
    return flows


def _declare(session: Session, body: Any, query: str) -> dict[str, Any]:
    return session.ask("POST", _path(session) + query, body)


def _change(session: Session, name: str, action: str, sentence: str) -> None:
    session.out.answer(session.ask("POST", f"{_path(session, name)}/{action}", {}), sentence)


def _path(session: Session, name: str = "") -> str:
    path = f"/admin/flows/{session.connection.gateway}"
    return f"{path}/{quote(name, safe='')}" if name else path


def _read(file: str) -> list[Any]:
    """Read a file that holds ``flows``, or a single flow."""
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
def list_destinations(session: Session) -> None:
    """List the destinations with their state, lag, waiting batches and refused rows.

    "archived to" is the time up to which the archive has the history of every table.

    Example:
      lakesync destinations list
    """
    answer = session.ask("GET", _destinations_path(session))
    declared = answer["destinations"]
    must_exist(session, declared)
    if session.out.json_lines:
        for each in declared:
            session.out.json(each)
        return
    rows = [
        (
            each["name"],
            each["kind"],
            each["state"],
            f"{each['lagMs'] / 1000:.0f} s" if each["waiting"] else "",
            each["waiting"],
            each["filling"],
            each["deadLetters"],
            _archived(each),
        )
        for each in declared
    ]
    columns = ("name", "kind", "state", "lag", "waiting", "filling", "dead letters", "archived to")
    empty = "No destinations; declare one: lakesync destinations add warehouse warehouse.json"
    session.out.table(columns, rows, title="Destinations.", empty=empty)
    _note_without_lake(session, answer)
    for each in declared:
        for table in each["tablesDelivered"]:
            if table["error"]:
                session.out.note(f"{each['name']}: {table['table']}: {table['error']}")
        for claim in each["setAside"]:
            session.out.note(f"{each['name']}: set aside: {claim['claim']}: {claim['reason']}")
        if each["deadLetters"] or each["setAside"]:
            session.out.note(f"fix the cause, then: lakesync destinations replay {each['name']}")


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
    answer = _declare_destination(session, name, file, archive, "?dryRun=true")
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
    answer = _declare_destination(session, name, file, archive, "?check=false" if no_check else "")
    session.out.answer(answer, f"declared: {name}; `lakesync destinations list` shows its progress")
    untyped = _untyped(session, answer)
    if untyped:
        session.out.note(
            f"{untyped}: without a schema columns are JSON text there; for types, register one "
            "first: lakesync schema put, or lakesync connectors add --schema"
        )


@command
def pause_destination(session: Session, *, name: Annotated[str, _DESTINATION_NAME]) -> None:
    """Pause delivery to a destination. New data waits, and nothing is lost. Safe to repeat.

    Example:
      lakesync destinations pause warehouse
    """
    _change_destination(session, name, "pause", f"paused: {name}")


@command
def resume_destination(session: Session, *, name: Annotated[str, _DESTINATION_NAME]) -> None:
    """Resume delivery to a destination from where it was paused. Safe to repeat.

    Example:
      lakesync destinations resume warehouse
    """
    _change_destination(session, name, "resume", f"resumed: {name}")


@command
def backfill_destination(session: Session, *, name: Annotated[str, _DESTINATION_NAME]) -> None:
    """Fill a destination again from the gateway's rows, while delivery continues.

    It restores rows that were removed at the destination. Safe to repeat.

    Example:
      lakesync destinations backfill warehouse
    """
    _change_destination(session, name, "backfill", f"{name} is being filled")


@command
def replay(session: Session, *, name: Annotated[str, _DESTINATION_NAME]) -> None:
    """Retry the rows that the database refused, and the claims that were set aside.

    Example:
      lakesync destinations replay warehouse
    """
    answer = session.ask("POST", f"{_destinations_path(session, name)}/replay", {})
    session.out.answer(answer, f"{name}: {plural(answer['tables'], 'table')} will be retried")


@command
def remove_destination(session: Session, *, name: Annotated[str, _DESTINATION_NAME]) -> None:
    """Stop delivering to a destination and remove its declaration. Its tables are not changed.

    Example:
      lakesync destinations remove warehouse
    """
    answer = session.ask("DELETE", _destinations_path(session, name))
    session.out.answer(answer, f"removed: {name}; its tables are not changed")
    _note_without_lake(session, answer)


def _note_without_lake(session: Session, answer: dict[str, Any]) -> None:
    """Say which tables are only where destinations have them."""
    if tables := answer.get("withoutLake"):
        named = "no table goes" if "*" in tables else f"these do not go: {', '.join(tables)}"
        session.out.note(f"to the lake {named}; a destination is declared in its place, or was")


def _untyped(session: Session, destination: dict[str, Any]) -> str:
    """Name the tables of a destination that have no schema; empty if all have one."""
    schemas = session.ask("GET", f"/admin/schema/{session.connection.gateway}").get("tables", [])
    typed = {schema["table"].lower() for schema in schemas}
    named = destination.get("tables", [])
    if not named:
        return "all tables without a schema" if typed else "all tables"
    return ", ".join(table for table in named if table.lower() not in typed)


def _archived(destination: dict[str, Any]) -> str:
    """Return up to what time every table's history is archived; empty without an archive."""
    tables = destination["tablesDelivered"] if "archive" in destination else []
    marks = [int(table["archived"]) for table in tables if table["table"]]
    if not marks:
        return ""
    return f"{instant(min(marks)):%Y-%m-%d %H:%M}" if all(marks) else "nothing yet"


def _change_destination(session: Session, name: str, action: str, sentence: str) -> None:
    session.out.answer(
        session.ask("POST", f"{_destinations_path(session, name)}/{action}", {}), sentence
    )


def _destinations_path(session: Session, name: str = "") -> str:
    path = f"/admin/destinations/{session.connection.gateway}"
    return f"{path}/{quote(name, safe='')}" if name else path


def _declare_destination(
    session: Session, name: str, file: str, archive: str | None, query: str = ""
) -> dict[str, Any]:
    """Send a declaration; if it is refused, print each of its faults."""
    body = read_json(file)
    if archive is not None and isinstance(body, dict):
        secret, _, days = archive.rpartition(":")
        if not secret or not days.isdecimal():
            raise UsageFault("--archive names a secret and days: warehouse-archive:30")
        body = body | {"archive": {"secret": secret, "afterDays": int(days)}}
    try:
        return session.ask("POST", _destinations_path(session, name) + query, body)
    except DestinationRefused as refused:
        if not session.out.json_lines:
            session.out.table(("at", "fault"), refused.faults)
        raise
