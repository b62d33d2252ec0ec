"""`lakesync destinations`: databases that receive a gateway's rows, besides the lake."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

import typer

from lakesync.cli.cells import instant
from lakesync.cli.existence import must_exist
from lakesync.cli.faults import UsageFault
from lakesync.cli.files import read_json
from lakesync.cli.session import Session, command
from lakesync.core.plural import plural
from lakesync.errors import DestinationRefused

_NAME = typer.Argument(help="The destination's name.")
_FILE = typer.Argument(help="The declaration, a JSON file; - for standard input.")
_ARCHIVE = typer.Option(
    help="Move history that is older than DAYS to the bucket folder whose URL is in the secret "
    "SECRET.",
    metavar="SECRET:DAYS",
)
_NO_CHECK = typer.Option("--no-check", help="Declare without asking the database first.")


@command
def list_(session: Session) -> None:
    """List the destinations with their state, lag, waiting batches and refused rows.

    "archived to" is the time up to which the archive has the history of every table.

    Example:
      lakesync destinations list
    """
    answer = session.ask("GET", _path(session))
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
    name: Annotated[str, _NAME],
    file: Annotated[str, _FILE],
    archive: Annotated[str | None, _ARCHIVE] = None,
) -> None:
    """Check a declaration, list all of its faults, and ask its database; nothing is saved.

    Example:
      lakesync destinations check warehouse warehouse.json
    """
    answer = _declare(session, name, file, archive, "?dryRun=true")
    session.out.answer(answer, f"{name} can be declared; its database answers")


@command
def add(
    session: Session,
    *,
    name: Annotated[str, _NAME],
    file: Annotated[str, _FILE],
    archive: Annotated[str | None, _ARCHIVE] = None,
    no_check: Annotated[bool, _NO_CHECK] = False,
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
    answer = _declare(session, name, file, archive, "?check=false" if no_check else "")
    session.out.answer(answer, f"declared: {name}; `lakesync destinations list` shows its progress")
    untyped = _untyped(session, answer)
    if untyped:
        session.out.note(
            f"{untyped}: without a schema columns are JSON text there; for types, register one "
            "first: lakesync schema put, or lakesync connectors add --schema"
        )


@command
def pause(session: Session, *, name: Annotated[str, _NAME]) -> None:
    """Pause delivery to a destination. New data waits, and nothing is lost. Safe to repeat.

    Example:
      lakesync destinations pause warehouse
    """
    _change(session, name, "pause", f"paused: {name}")


@command
def resume(session: Session, *, name: Annotated[str, _NAME]) -> None:
    """Resume delivery to a destination from where it was paused. Safe to repeat.

    Example:
      lakesync destinations resume warehouse
    """
    _change(session, name, "resume", f"resumed: {name}")


@command
def backfill(session: Session, *, name: Annotated[str, _NAME]) -> None:
    """Fill a destination again from the gateway's rows, while delivery continues.

    It restores rows that were removed at the destination. Safe to repeat.

    Example:
      lakesync destinations backfill warehouse
    """
    _change(session, name, "backfill", f"{name} is being filled")


@command
def replay(session: Session, *, name: Annotated[str, _NAME]) -> None:
    """Retry the rows that the database refused, and the claims that were set aside.

    Example:
      lakesync destinations replay warehouse
    """
    answer = session.ask("POST", f"{_path(session, name)}/replay", {})
    session.out.answer(answer, f"{name}: {plural(answer['tables'], 'table')} will be retried")


@command
def remove(session: Session, *, name: Annotated[str, _NAME]) -> None:
    """Stop delivering to a destination and remove its declaration. Its tables are not changed.

    Example:
      lakesync destinations remove warehouse
    """
    answer = session.ask("DELETE", _path(session, name))
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


def _change(session: Session, name: str, action: str, sentence: str) -> None:
    session.out.answer(session.ask("POST", f"{_path(session, name)}/{action}", {}), sentence)


def _path(session: Session, name: str = "") -> str:
    path = f"/admin/destinations/{session.connection.gateway}"
    return f"{path}/{quote(name, safe='')}" if name else path


def _declare(
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
        return session.ask("POST", _path(session, name) + query, body)
    except DestinationRefused as refused:
        if not session.out.json_lines:
            session.out.table(("at", "fault"), refused.faults)
        raise
