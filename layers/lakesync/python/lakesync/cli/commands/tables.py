"""`lakesync schema`, `codegen`, `tables`, `rules`: what tables are, where, and who sees which rows.

Schemas are registered, extended and shown; a Python class is generated for each; tables are moved
to shards and removed. Sync rules state which rows each client sees and may write.
"""

from __future__ import annotations

import json
import keyword
import re
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from lakesync.analysis.connection import FAILED, UsageFault
from lakesync.cli.input_output import Cell, read_json, read_objects
from lakesync.cli.session import Session, command, must_exist
from lakesync.core.wording import plural
from lakesync.errors import RulesRefused

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from lakesync.errors import Fault

# --- schema ---------------------------------------------------------------------------------------


_NO_SCHEMA: Final = "no table has a schema: lakesync schema put --help"
_ARGUMENT = "A JSON file with table and columns; - for standard input."


@command
def list_schemas(session: Session) -> None:
    """List the tables that have a schema, with its version and other declarations.

    Example:
      lakesync schema list
      lakesync schema list --json | jq .columns
    """
    answer = session.admin("GET", "schema")
    tables = answer.get("tables", [])
    must_exist(session, tables)
    columns: dict[str, Cell] = {
        "table": "table", "version": "version", "columns": lambda each: len(each["columns"]),
        "declared": _more,
    }  # fmt: skip
    session.out.listing(tables, columns, empty=_NO_SCHEMA)
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
    [schema] = session.admin("GET", "schema", table=table)["tables"]
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
    saved = session.admin("POST", "schema", body=body)
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
    saved = session.admin("POST", "schema", body=body)
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


# --- codegen --------------------------------------------------------------------------------------


_TYPES: Final = {
    "string": "str",
    "number": "float",
    "integer": "int",
    "boolean": "bool",
    "json": "_typing.Any",
    "timestamp": "_datetime.datetime",
    "date": "_datetime.date",
    "bytes": "bytes",
}
_HEAD: Final = '''"""Rows of the tables of the gateway {gateway}.

Made by ``lakesync codegen``: make it again when a schema grows, and edit nothing here.
``client.declare("…", …)`` takes these, and ``client.query("SELECT * FROM …", as_=…)`` and ``watch``
give rows as these.
"""

from __future__ import annotations

import builtins as _builtins
import datetime as _datetime
import decimal as _decimal
import typing as _typing
from dataclasses import dataclass as _dataclass

_ = _builtins, _datetime, _decimal
'''


@command
def codegen(
    session: Session,
    *,
    typescript: Annotated[
        bool, typer.Option("--typescript", help="Print a module of TypeScript instead.")
    ] = False,
) -> None:
    """Print a Python module with a typed class for each table that has a schema.

    Queries return rows as these classes with `as_`, and `client.declare("todos", Todos)` accepts
    them. TABLES has the types of all columns, including those whose names are not valid in Python.
    With --typescript, the same for the client in browsers: an interface for each table, and TABLES.

    Example:
      lakesync codegen > tables.py
      lakesync codegen --typescript > tables.ts
    """
    answer = session.admin("GET", "schema")
    tables = answer.get("tables", [])
    must_exist(session, tables)
    if session.out.json_lines:
        for schema in tables:
            session.out.json(schema)
        return
    text = typescript_text if typescript else module_text
    session.out.text(text(session.connection.gateway, tables))
    if not tables:
        session.out.note(_NO_SCHEMA)


def module_text(gateway: str, tables: Iterable[Mapping[str, Any]]) -> str:
    """Return the module for the tables of a gateway; the same for the same schemas."""
    parts = [_HEAD.format(gateway=_in_text(gateway))]
    declared: list[str] = []
    taken = {"TABLES"}
    for schema in sorted(tables, key=lambda one: str(one["table"])):
        columns = {str(column["name"]): str(column["type"]) for column in schema["columns"]}
        name = _class_name(str(schema["table"]), taken)
        taken.add(name)
        parts.append(_class(name, str(schema["table"]), columns))
        pairs = "".join(f"        {key!r}: {kind!r},\n" for key, kind in columns.items())
        declared.append(f"    {str(schema['table'])!r}: {{\n{pairs}    }},\n")
    table_of = "TABLES: _typing.Final[dict[str, dict[str, str]]] = {\n" + "".join(declared) + "}"
    about = '"""For ``client.declare(table, columns)``."""'
    return "\n\n".join([*parts, f"{table_of}\n{about}"])


def _class(name: str, table: str, columns: Mapping[str, str]) -> str:
    fields = ["    _row_id: str"]
    for column, kind in columns.items():
        if column.isidentifier() and not keyword.iskeyword(column) and not column.startswith("__"):
            fields.append(f"    {column}: {_hint(kind, columns)} | None = None")
        else:
            fields.append(
                f"    # {_in_text(column)}: no name for Python; rename it by AS in a query"
            )
    about = f'    """A row of {_in_text(table)}."""'
    return "\n".join(["@_dataclass(slots=True)", f"class {name}:", about, "", *fields, ""])


def _hint(kind: str, columns: Mapping[str, str]) -> str:
    if kind.startswith("decimal"):
        return f'_typing.Annotated[_decimal.Decimal, "{kind}"]'
    hint = _TYPES.get(kind, f'_typing.Annotated[_typing.Any, "{kind}"]')
    # In its class a column of a type's name stands for that column.
    return f"_builtins.{hint}" if hint in columns else hint


def _class_name(table: str, taken: set[str]) -> str:
    words = re.findall(r"[A-Za-z0-9]+", table)
    name = "".join(word[:1].upper() + word[1:] for word in words)
    if not name or not name[0].isalpha() or keyword.iskeyword(name):
        name = f"Table{name}"
    number, candidate = 1, name
    while candidate in taken:
        number += 1
        candidate = f"{name}{number}"
    return candidate


def _in_text(name: str) -> str:
    """Return a name as it may stand in a docstring or a comment, whatever it holds."""
    return re.sub(r'[\\"\x00-\x1f\x7f-\x9f\u2028\u2029]', "?", name)


# --- codegen for browsers -------------------------------------------------------------------------


_TYPESCRIPT: Final = {
    "string": "string",
    "number": "number",
    "integer": "bigint",
    "boolean": "boolean",
    "json": "unknown",
    "timestamp": "string",
    "date": "string",
    "bytes": "Uint8Array",
    "null": "null",
}
_TYPESCRIPT_HEAD: Final = """/**
 * Rows of the tables of the gateway {gateway}.
 *
 * Made by `lakesync codegen --typescript`: make it again when a schema grows; edit nothing here.
 */
"""


def typescript_text(gateway: str, tables: Iterable[Mapping[str, Any]]) -> str:
    """Return the module of TypeScript for a gateway's tables; the same for the same schemas."""
    parts = [_TYPESCRIPT_HEAD.format(gateway=_in_comment(gateway))]
    rows: list[str] = []
    declared: list[str] = []
    taken = {"Tables"}
    for schema in sorted(tables, key=lambda one: str(one["table"])):
        table = str(schema["table"])
        columns = {str(column["name"]): str(column["type"]) for column in schema["columns"]}
        name = _class_name(table, taken)
        taken.add(name)
        fields = "".join(
            f"  {json.dumps(column)}?: {_typescript(kind)};\n" for column, kind in columns.items()
        )
        parts.append(
            f"/** A row of {_in_comment(table)}. */\nexport interface {name} {{\n{fields}}}\n"
        )
        rows.append(f"  {json.dumps(table)}: {name};\n")
        # A key in brackets is one whatever it is called: without them, __proto__ is none.
        pairs = "".join(
            f"    [{json.dumps(key)}]: {json.dumps(kind)},\n" for key, kind in columns.items()
        )
        declared.append(f"  [{json.dumps(table)}]: {{\n{pairs}  }},\n")
    by_table = "/** The rows of each table. */\nexport interface Tables {\n" + "".join(rows) + "}\n"
    types = (
        "/** For `client.declare(table, TABLES[table])`. */\nexport const TABLES = {\n"
        + "".join(declared)
        + "} as const;"
    )
    return "\n".join([*parts, by_table, types])


def _typescript(kind: str) -> str:
    name = "string" if kind.startswith("decimal") else _TYPESCRIPT.get(kind, "unknown")
    return name if name in {"unknown", "null"} else f"{name} | null"


def _in_comment(name: str) -> str:
    return _in_text(name).replace("*/", "?")


# --- tables ---------------------------------------------------------------------------------------


@command
def list_(session: Session) -> None:
    """List the tables that are not in the default shard, each with its shard.

    Example:
      lakesync tables list
    """
    answer = session.admin("GET", "tables")
    must_exist(session, answer["tables"])
    if session.out.json_lines:
        session.out.json(answer)
    elif answer["tables"]:
        session.out.table(("table", "shard"), list(answer["tables"].items()))
    else:
        session.out.text("all tables are in the default shard")


@command
def place(
    session: Session,
    *,
    table: Annotated[str, typer.Argument(help="The table's name.")],
    shard: Annotated[str, typer.Argument(help="The shard; main is the default one.")],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what it costs, and change nothing.")
    ] = False,
) -> None:
    """Move a table to a shard. Tables of one shard are read together.

    Writers need no shards, because they choose lanes automatically. A separate shard is worthwhile
    for a table with many commits that most clients may not see: they do not read its log then. It
    costs other clients a read unit per pull, however many shards are in use, and two to four write
    units for a push that also touches another shard. With more than five shards the push of a small
    edit costs more as well: up to six write units rather than 4.3 with twenty. If only the default
    one is in use, shards cost nothing. Safe to repeat.

    Example:
      lakesync tables place events telemetry --dry-run
      lakesync tables place events telemetry
    """
    body = {"table": table, "shard": shard, "dryRun": dry_run}
    answer = session.admin("POST", "tables", body=body)
    units, writes = answer["pullReadUnits"], answer["pushWriteUnits"]
    verb = "would be" if dry_run else "is"
    session.out.answer(
        answer,
        f"{table} {verb} in shard {shard}, of {plural(len(answer['shards']), 'shard')}; "
        f"while all are in use, a pull that brings nothing reads {plural(units['after'], 'unit')} "
        f"at most ({units['before']} before); a push of one small edit of it writes some "
        f"{writes['after']:g} units ({writes['before']:g} before), and one that also touches "
        "another shard writes two to four more",
    )


@command
def remove(
    session: Session,
    *,
    table: Annotated[str, typer.Argument(help="The table's name.")],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say whether it may be done, and change nothing.")
    ] = False,
) -> None:
    """Remove a table of which nothing is left in the gateway, so that it counts no more.

    For tables that were declared by mistake or in bad faith: a gateway has at most 500 tables, and
    a user declares at most 20 that no schema names. The table has no schema, no rows, no changes in
    the log, and the sync rules do not name it. To get there, delete its rows, and wait for
    retention to forget the deletions. Its data in the lake and in destinations stays.

    Example:
      lakesync tables remove scratch --dry-run
      lakesync tables remove scratch
    """
    answer = session.admin("DELETE", "tables", table, dryRun=dry_run)
    session.out.answer(answer, f"{table} {'may be' if dry_run else 'is'} removed")


# --- sync rules -----------------------------------------------------------------------------------


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
    tried = session.admin("POST", "sync-rules", body=body, dryRun=True)
    return tried["tables"], tried.get("warnings", [])


def _offline(body: object, files: Sequence[str]) -> tuple[list[dict[str, Any]], list[Any]]:
    from lakesync.core.visibility import Viewer
    from lakesync.declare.schemas import read_schema
    from lakesync.declare.sync_rules import read_rules

    listed = [read_schema(item) for file in files for item in read_objects(file)]
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
def put_rules(
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
    saved = session.admin("POST", "sync-rules", body=body)
    buckets = body.get("buckets", ()) if isinstance(body, dict) else ()
    session.out.answer(saved, f"in force, buckets: {len(buckets)}")
    if not session.out.json_lines:
        _warn(session, saved.get("warnings", ()))


@command
def show_rules(session: Session) -> None:
    """Print the sync rules in force, in the form that `lakesync rules put` accepts.

    Example:
      lakesync rules show > rules.json
    """
    in_force = session.admin("GET", "sync-rules")
    must_exist(session, in_force["buckets"])
    session.out.document(in_force)


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
    asked: dict[str, Any] = {"dryRun": True, "as": json.dumps(_claims(as_))}
    must_exist(session)
    with session.out.progress("reading rows …"):
        tried = session.admin("POST", "sync-rules", body=read_json(file), **asked)
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
