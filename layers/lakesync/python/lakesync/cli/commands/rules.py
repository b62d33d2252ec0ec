"""`lakesync rules`: which rows each client sees and may write."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import urlencode

import typer

from lakesync.cli.faults import FAILED, UsageFault
from lakesync.cli.input_output import read_json, read_objects
from lakesync.cli.session import Session, command, must_exist
from lakesync.core.wording import plural
from lakesync.errors import RulesRefused

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lakesync.errors import Fault

_FILE: Final = "A JSON file with buckets; - for standard input."


@command
def check(
    session: Session,
    *,
    file: Annotated[str, typer.Argument(help=_FILE)],
    schema: Annotated[
        list[str] | None,
        typer.Option(
            help="Check offline against the schemas in this file: one schema, or lines of "
            "`lakesync schema list --json`. Repeatable."
        ),
    ] = None,
) -> None:
    """Check sync rules, and print all faults, or the effect on each table; nothing is saved.

    The rules are checked against the schemas of the gateway, or of files. Exits with 1 if there is
    a fault.

    Example:
      lakesync rules check rules.json
      lakesync rules check rules.json --schema todos.json --schema lists.json
    """
    body = read_json(file)
    try:
        tables, warnings = _offline(body, schema) if schema else _by_gateway(session, body)
    except RulesRefused as error:
        _show_faults(session, error.faults)
        raise typer.Exit(FAILED) from error
    if session.out.json_lines:
        session.out.json({"valid": True, "faults": [], "warnings": warnings, "tables": tables})
    else:
        rows = [(item["table"], ", ".join(item["buckets"]) or None, _writes(item),
                 ", ".join(item["omitted"]) or None) for item in tables]  # fmt: skip
        head = ("table", "buckets", "a client writes", "left out")
        session.out.table(head, rows, title="The rules have no fault.")
        _warn(session, warnings)


def _writes(item: dict[str, Any]) -> str:
    """Describe the rows of a table that a client may write."""
    if item["writers"] == "seen":
        return "rows that it sees, and new ones" if item["buckets"] else "new rows"
    return "any row" if item["writers"] == "anyone" else "rows that pass its write filters"


def _warn(session: Session, warnings: Sequence[dict[str, Any]]) -> None:
    for warning in warnings:
        session.out.note(f"warning: {warning['path']}: {warning['warning']}")


def _by_gateway(session: Session, body: object) -> tuple[list[dict[str, Any]], list[Any]]:
    path = f"/admin/sync-rules/{session.connection.gateway}?dryRun=true"
    tried = session.ask("POST", path, body)
    return tried["tables"], tried.get("warnings", [])


def _offline(body: object, files: Sequence[str]) -> tuple[list[dict[str, Any]], list[Any]]:
    from lakesync.core.rules_json import read_rules
    from lakesync.core.schema import schema_from_json
    from lakesync.core.visibility import Viewer

    listed = [schema_from_json(item) for file in files for item in read_objects(file)]
    schemas = {schema.table: schema for schema in listed}
    rules, warnings = read_rules(body, schemas, strict=False)
    tables = [
        {
            "table": table,
            "buckets": [bucket.name for bucket in rules.covering(table)],
            "writers": rules.writers(table),
            "omitted": sorted(Viewer(rules, {}).omitted(table)),
        }
        for table in sorted(schemas.keys() | rules.tables())
    ]
    return tables, [{"path": each.path, "warning": each.message} for each in warnings]


def _show_faults(session: Session, faults: Sequence[Fault]) -> None:
    if session.out.json_lines:
        listed = [{"path": fault.path, "error": fault.message} for fault in faults]
        session.out.json({"valid": False, "faults": listed})
        return
    session.out.table(("at", "fault"), faults, title=plural(len(faults), "fault"))


@command
def put(
    session: Session,
    *,
    file: Annotated[str, typer.Argument(help=_FILE)],
) -> None:
    """Replace the sync rules in force, for every later push and pull. Safe to repeat.

    Tables and columns without a schema cause a warning; a strict gateway refuses them. Before,
    `lakesync rules check` lists all faults, and `lakesync rules try` shows the effect on a client.

    Example:
      lakesync rules put rules.json
      echo '{"buckets": []}' | lakesync rules put -
    """
    body = read_json(file)
    saved = session.ask("POST", f"/admin/sync-rules/{session.connection.gateway}", body)
    buckets = body.get("buckets", ()) if isinstance(body, dict) else ()
    session.out.answer(saved, f"in force, buckets: {len(buckets)}")
    if not session.out.json_lines:
        _warn(session, saved.get("warnings", ()))


@command
def show(session: Session) -> None:
    """Print the sync rules in force, in the form that `lakesync rules put` accepts.

    Example:
      lakesync rules show > rules.json
    """
    in_force = session.ask("GET", f"/admin/sync-rules/{session.connection.gateway}")
    must_exist(session, in_force["buckets"])
    session.out.answer(in_force, json.dumps(in_force, indent=2))


# --- try ------------------------------------------------------------------------------------------


@command
def try_(
    session: Session,
    *,
    file: Annotated[str, typer.Argument(help="A JSON file with buckets; - for standard input.")],
    as_: Annotated[
        str, typer.Option("--as", help="The token claims of the client, as a JSON object.")
    ],
) -> None:
    """Show what a client would see under the sync rules of a file; nothing is saved.

    For each table it shows how many rows the client would see, how many it sees now, and how many
    would enter or leave its device, with examples.

    Example:
      lakesync rules try rules.json --as '{"sub": "phone-1", "carriers": ["UA"]}'
    """
    query = urlencode({"dryRun": "true", "as": json.dumps(_claims(as_))})
    path = f"/admin/sync-rules/{session.connection.gateway}?{query}"
    must_exist(session)
    with session.out.progress("reading rows …"):
        tried = session.ask("POST", path, read_json(file))
    if session.out.json_lines:
        session.out.json(tried)
    else:
        _show(session, tried)


def _claims(text: str) -> dict[str, Any]:
    try:
        claims = json.loads(text)
    except ValueError:
        claims = None
    if not isinstance(claims, dict):
        raise UsageFault(f'--as {text[:40]!r} is not a JSON object: write \'{{"sub": "c1"}}\'')
    return claims


def _show(session: Session, tried: Mapping[str, Any]) -> None:
    out = session.out
    counted = [item for item in tried["tables"] if "seen" in item]
    rows = [
        (item["table"], item["seen"]["count"], item["inForce"], item["enter"]["count"],
         item["leave"]["count"], ", ".join(item["omitted"]) or None,
         None if item["complete"] else "not all rows were read")
        for item in counted
    ]  # fmt: skip
    out.table(("table", "would see", "sees now", "enter", "leave", "left out", "note"), rows)
    for item in counted:
        for what in ("enter", "leave"):
            _show_rows(session, item["table"], what, item[what])
    events = [item["table"] for item in tried["tables"] if item["append"]]
    if events:
        out.note(f"events are not counted: {', '.join(events)}")
    if not tried["complete"]:
        out.note("there are too many rows to read all of them in one request")


def _show_rows(session: Session, table: str, what: str, shown: Mapping[str, Any]) -> None:
    if not shown["rows"]:
        return
    names = sorted({name for row in shown["rows"] for name in row["columns"]})
    rows = [(row["rowId"], *(row["columns"].get(name) for name in names)) for row in shown["rows"]]
    left = shown["count"] - len(rows)
    more = f", of {shown['count']:,}" if left else ""
    session.out.text("")
    title = f"{table}: {plural(len(rows), 'row')} that would {what}{more}"
    session.out.table(("row", *names), rows, title=title)
