"""`lakesync schema`: register, extend and show the schemas of tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlencode

import typer

from lakesync.cli.existence import must_exist
from lakesync.cli.faults import UsageFault
from lakesync.cli.files import read_json
from lakesync.cli.session import Session, command

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_ARGUMENT = "A JSON file with table and columns; - for standard input."


@command
def list_(session: Session) -> None:
    """List the tables that have a schema, with its version and other declarations.

    Example:
      lakesync schema list
      lakesync schema list --json | jq .columns
    """
    answer = session.ask("GET", f"/admin/schema/{session.connection.gateway}")
    tables = answer.get("tables", [])
    must_exist(session, tables)
    if session.out.json_lines:
        for schema in tables:
            session.out.json(schema)
    elif tables:
        rows = [(item["table"], item["version"], len(item["columns"]), _more(item))
                for item in tables]  # fmt: skip
        session.out.table(("table", "version", "columns", "declared"), rows)
    else:
        session.out.text("no table has a schema: lakesync schema put --help")
    if answer.get("strict"):
        session.out.note("strict: tables without a schema are refused")


@command
def show(
    session: Session, *, table: Annotated[str, typer.Argument(help="The table's name.")]
) -> None:
    """Show a table's schema; with --json in the form that `lakesync schema put` accepts.

    Example:
      lakesync schema show todos
      lakesync schema show todos --json > todos.json
    """
    path = f"/admin/schema/{session.connection.gateway}?{urlencode({'table': table})}"
    [schema] = session.ask("GET", path)["tables"]
    if session.out.json_lines:
        session.out.json(schema)
        return
    rows = [(item["name"], item["type"], item["nullable"]) for item in schema["columns"]]
    more = _more(schema)
    title = f"{table}, version {schema['version']}{f': {more}' if more else ''}"
    session.out.table(("column", "type", "nullable"), rows, title=title)


@command
def put(
    session: Session,
    *,
    file: Annotated[str | None, typer.Argument(help=_ARGUMENT)] = None,
    table: Annotated[str | None, typer.Option(help="The table, instead of a file.")] = None,
    column: Annotated[
        list[str] | None, typer.Option(help="A column, name:type. Repeatable.")
    ] = None,
) -> None:
    """Register or extend a table's schema: its columns are checked, and typed in the lake.

    A schema can only grow, by new nullable columns and wider types. Other changes are refused with
    a description of the alternative. Safe to repeat. Types: string, number, integer, boolean, json,
    timestamp, date, bytes, decimal(p,s).

    Example:
      lakesync schema put todos.json
      lakesync schema put --table todos --column title:string --column done:boolean
    """
    body = _inline(table, column or ()) if file is None else read_json(file)
    saved = session.ask("POST", f"/admin/schema/{session.connection.gateway}", body)
    name = body.get("table") if isinstance(body, dict) else ""
    spelled = saved.get("spelled", {})
    name = spelled.get(name, name)
    listed = ", ".join(f"{one} as {other}" for one, other in spelled.items())
    adopted = f"; spelled as the rows there are: {listed}" if listed else ""
    said = f"{name}: schema version {saved.get('version', '?')} is in force{adopted}"
    session.out.answer(saved, said)


@command
def strict(
    session: Session, *, wanted: Annotated[str, typer.Argument(metavar="on|off", help="on or off.")]
) -> None:
    """Turn strict mode on or off: whether deltas of tables without a schema are refused.

    Example:
      lakesync schema strict on
    """
    if wanted not in {"on", "off"}:
        raise UsageFault(f"{wanted[:20]!r} is neither on nor off")
    body = {"strict": wanted == "on"}
    saved = session.ask("POST", f"/admin/schema/{session.connection.gateway}", body)
    effect = "are refused" if body["strict"] else "may be written"
    session.out.answer(saved, f"tables without a schema {effect}")


def _more(schema: Mapping[str, Any]) -> str:
    """Describe the declarations of a table other than its columns."""
    further = {name: value for name, value in schema.items()
            if name not in {"table", "version", "columns"}}  # fmt: skip
    return ", ".join(
        name if value is True else f"{name} {' '.join(value) if isinstance(value, list) else value}"
        for name, value in further.items()
    )


def _inline(table: str | None, columns: Iterable[str]) -> dict[str, object]:
    declared = [column.partition(":") for column in columns]
    if not table or not declared or not all(kind for _, _, kind in declared):
        raise UsageFault("give a file, or --table NAME with --column name:type for each column")
    return {"table": table, "columns": [{"name": name, "type": kind} for name, _, kind in declared]}
