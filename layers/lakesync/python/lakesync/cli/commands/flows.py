"""`lakesync flows`: move rows from sources to destinations, as ``flows.yaml`` declares."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

import typer

from lakesync.cli.existence import must_exist
from lakesync.cli.files import read_yaml
from lakesync.cli.flow_tables import count_of, end_of, show_flows
from lakesync.cli.session import Session, command
from lakesync.core.plural import plural
from lakesync.errors import Conflict, Fault, FlowRefused, NotFound

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
