"""`lakesync rules check`, `put` and `show`: which rows each client sees and may write."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from lakesync.cli.existence import must_exist
from lakesync.cli.faults import FAILED
from lakesync.cli.files import read_json, read_objects
from lakesync.cli.session import Session, command
from lakesync.core.plural import plural
from lakesync.errors import RulesRefused

if TYPE_CHECKING:
    from collections.abc import Sequence

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
    from lakesync.core.schema_json import schema_from_json
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
