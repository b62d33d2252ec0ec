"""`lakesync schema put`: register a table's schema, or let it grow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from lakesync.cli.faults import UsageFault
from lakesync.cli.files import read_json
from lakesync.cli.session import Session, command

if TYPE_CHECKING:
    from collections.abc import Iterable

_ARGUMENT = "A JSON file with table and columns; - for standard input."


@command
def put(
    session: Session,
    *,
    file: Annotated[str | None, typer.Argument(help=_ARGUMENT)] = None,
    table: Annotated[str | None, typer.Option(help="The table, in place of a file.")] = None,
    column: Annotated[
        list[str] | None, typer.Option(help="A column, name:type; repeatable.")
    ] = None,
) -> None:
    """Put a table's schema in force: its columns are checked, and typed in the lake.

    A schema only ever grows: new nullable columns, wider types. Types: string, number, integer,
    boolean, json, timestamp, date, bytes, decimal(p,s).

    Example:
      lakesync schema put todos.json
      lakesync schema put --table todos --column title:string --column done:boolean
    """
    body = _inline(table, column or ()) if file is None else read_json(file)
    saved = session.ask("POST", f"/admin/schema/{session.connection.gateway}", body)
    name = body.get("table") if isinstance(body, dict) else ""
    session.out.answer(saved, f"{name}: schema version {saved.get('version', '?')} is in force")


def _inline(table: str | None, columns: Iterable[str]) -> dict[str, object]:
    declared = [column.partition(":") for column in columns]
    if not table or not declared or not all(kind for _, _, kind in declared):
        raise UsageFault("give a file, or --table NAME with --column name:type for each column")
    return {"table": table, "columns": [{"name": name, "type": kind} for name, _, kind in declared]}
