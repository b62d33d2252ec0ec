"""`lakesync codegen`: generate a Python class for each table that has a schema."""

from __future__ import annotations

import keyword
import re
from typing import TYPE_CHECKING, Any, Final

from lakesync.cli.existence import must_exist
from lakesync.cli.session import Session, command

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

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
def codegen(session: Session) -> None:
    """Print a Python module with a typed class for each table that has a schema.

    Queries return rows as these classes with `as_`, and `client.declare("todos", Todos)` accepts
    them. TABLES has the types of all columns, including those whose names are not valid in Python.

    Example:
      lakesync codegen > tables.py
    """
    answer = session.ask("GET", f"/admin/schema/{session.connection.gateway}")
    tables = answer.get("tables", [])
    must_exist(session, tables)
    if session.out.json_lines:
        for schema in tables:
            session.out.json(schema)
        return
    session.out.text(module_text(session.connection.gateway, tables))
    if not tables:
        session.out.note("no table has a schema: lakesync schema put --help")


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
