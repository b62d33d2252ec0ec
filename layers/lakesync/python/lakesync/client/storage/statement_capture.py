"""A statement of the app, traced: which rows it writes, and where its parameters go.

Which rows a statement writes is noted by temporary triggers (`Capture`). A trigger is created for a
table when a statement first writes to it, and again when the table's columns change; it notes
changes only while a statement runs. Temporary triggers belong to this connection: no other process
sees them, and nothing of them is in the file.

SQL knows neither booleans nor objects and lists: what Python passes as such reaches a cell as 1, or
as text, like any other. So that it is known and not guessed where such a parameter went, a
statement runs again with unmistakable texts in their place; see `Origins`.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import secrets
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lakesync.client.storage.app_table import ROW_ID, quote
from lakesync.client.storage.cell_values import (
    BINARY,
    bytes_as_json,
    decimal_text,
    timestamp_as_json,
)
from lakesync.core.delta import Op, canonical
from lakesync.errors import ValidationFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from lakesync.client.storage.app_table import AppTable, ColumnKey

# --- rows -----------------------------------------------------------------------------------------


_CALL_COLUMNS: Final = 100
"""Columns that one call of the noting function is given; SQLite allows 127 arguments."""
_OPS: Final = {Op.INSERT: "NEW", Op.UPDATE: "NEW", Op.DELETE: "OLD"}


@dataclass(slots=True)
class Note:
    """One row that a statement wrote."""

    op: Op
    row_id: object
    """The id after an insert or an update."""
    old_id: object
    cells: list[object]
    """What its columns contain afterwards, in the order of `AppTable.shown`; empty for a deleted
    row.
    """


class Capture:
    """Notes what statements write. Used within a transaction of the connection."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._is_on = False
        self._notes: list[Note] = []
        self.targets: dict[str, tuple[str, frozenset[ColumnKey]]] = {}
        """For statements that were prepared before: the table that each writes to, and the tables
        it reads.
        """
        connection.create_function("_lakesync_notes", 0, lambda: self._is_on)
        connection.create_function("_lakesync_note", -1, self._note)

    def _note(self, op: str, row_id: object, old_id: object, *cells: object) -> None:
        if op:
            self._notes.append(Note(Op[op], row_id, old_id, list(cells)))
        else:
            self._notes[-1].cells += cells

    @contextlib.contextmanager
    def noting(self, table: AppTable) -> Iterator[list[Note]]:
        """Note what the block writes to a table; the block's list has the notes when it ends."""
        self._prepare(table)
        notes: list[Note] = []
        self._notes = notes
        self._is_on = True
        try:
            yield notes
        finally:
            self._is_on = False

    def _prepare(self, table: AppTable) -> None:
        execute = self._connection.execute
        digest = hashlib.sha256("\0".join(map(str, table.columns.values())).encode()).hexdigest()
        wanted = {f"_lakesync_{op.name}_{table.id}_{digest[:10]}": op for op in _OPS}
        prefixes = " OR ".join(f"name GLOB '_lakesync_{op.name}_{table.id}_*'" for op in _OPS)
        there = {
            name
            for (name,) in execute(
                f"SELECT name FROM temp.sqlite_master WHERE type = 'trigger' AND ({prefixes})"  # noqa: S608 - ours
            ).fetchall()
        }
        for name in there - wanted.keys():
            execute(f"DROP TRIGGER temp.{quote(name)}")
        for name in wanted.keys() - there:
            execute(_trigger(name, wanted[name], table))


def _trigger(name: str, op: Op, table: AppTable) -> str:
    of = _OPS[op]
    columns = [] if op is Op.DELETE else [quote(c) for c in table.columns.values() if c]
    ids = [f"{of}.{quote(ROW_ID)}", f"{'NEW' if op is Op.INSERT else 'OLD'}.{quote(ROW_ID)}"]
    calls = []
    for start in range(0, max(1, len(columns)), _CALL_COLUMNS):
        part = [f"{of}.{column}" for column in columns[start : start + _CALL_COLUMNS]]
        first = f"'{op.name}'" if start == 0 else "''"
        calls.append(f"SELECT _lakesync_note({', '.join([first, *ids, *part])});")
    return (
        f"CREATE TEMP TRIGGER {quote(name)} AFTER {op.name} ON main.{quote(table.sql_name)} "
        f"WHEN _lakesync_notes() BEGIN {' '.join(calls)} END"
    )


# --- parameters -----------------------------------------------------------------------------------


_TOKEN_BYTES: Final = 12
_STRUCTURES: Final = (list, dict)


class AsJson(NamedTuple):
    """A parameter that is this JSON value exactly, also where SQL has another type for it."""

    value: Any


def as_cells(parameters: object, *, takes_lists: bool = False) -> Any:
    """Return parameters as SQLite takes them: dates and decimals as they are stored.

    So are lists and dictionaries, where they are taken.

    Raises:
        ValidationFailed: one is NaN, which SQLite would take as null, or is not JSON.
    """
    if isinstance(parameters, Mapping):
        return {name: _cell(value, takes_lists) for name, value in parameters.items()}
    if isinstance(parameters, list | tuple):
        return tuple(_cell(value, takes_lists) for value in parameters)
    return parameters


def _cell(value: object, takes_lists: object) -> object:
    if value.__class__ is str:
        return value
    if isinstance(value, float):
        if math.isnan(value):
            raise ValidationFailed(
                "a parameter is NaN, which is no JSON and which SQL takes as null: pass None",
                field="parameters",
            )
        return value
    if isinstance(value, date):  # a datetime too
        return timestamp_as_json(value) if isinstance(value, datetime) else value.isoformat()
    if isinstance(value, Decimal):
        return decimal_text(value)
    if isinstance(value, AsJson):
        return _cell(value.value, takes_lists=True)
    is_structure = takes_lists and type(value) in _STRUCTURES
    return canonical(value).decode() if is_structure else value


def holds_bytes(parameters: object) -> bool:
    """Return whether bytes are among what `as_cells` gave."""
    return any(isinstance(value, BINARY) for value in _values(parameters))


def with_base64(parameters: Any) -> Any:
    """Return what `as_cells` gave with bytes as declared columns store them."""
    if isinstance(parameters, Mapping):
        return {name: bytes_as_json(value) for name, value in parameters.items()}
    return tuple(map(bytes_as_json, parameters))


def _values(parameters: object) -> Iterable[object]:
    if isinstance(parameters, tuple):  # most are, and that is known sooner than a mapping
        return parameters
    return parameters.values() if isinstance(parameters, Mapping) else ()


class Origins:
    """Which noted cells come from parameters of types that SQL does not know.

    Args:
        parameters: as the app gave them.
        cells: the same as SQLite took them.
        again: notes what the statement writes with other parameters, and undoes it.
    """

    def __init__(
        self, parameters: object, cells: Any, again: Callable[[Any], Sequence[Note]]
    ) -> None:
        pairs: Iterable[tuple[Any, object]] = ()
        if isinstance(parameters, Mapping):
            pairs = parameters.items()
        elif isinstance(parameters, list | tuple):
            pairs = enumerate(parameters)
        marked = {key: value for key, value in pairs if _is_marked(value)}
        self._known = {
            key: value.value if isinstance(value, AsJson) else value
            for key, value in marked.items()
        }
        self._cells, self._again = cells, again

    def is_doubtful(self, content: object, value: object, kind: str) -> bool:
        """Return whether a cell's contents may be a parameter other than ``value``."""
        if not self._known or content is None or kind == "bytes":
            return False  # any bytes are base64 there
        is_text = kind == "decimal"  # SQLite makes text of a number, of 15 digits
        return any(
            not same(given, value)
            and (_is_content(self._cells[key], content) or (is_text and _is_number(given)))
            for key, given in self._known.items()
        )

    def of(self, notes: Sequence[Note]) -> dict[tuple[int, int], object]:
        """Return the parameters by the notes, and the cells of them, that they went to.

        Each parameter is replaced by a text of its own: all at once, or, where the statement then
        writes other rows, as it compares some, one by one. One that it both compares and writes
        remains what SQL has for it.
        """
        tokens = {secrets.token_hex(_TOKEN_BYTES): key for key in self._known}
        origins = self._traced(notes, tokens)
        if origins is not None:
            return origins
        each = [self._traced(notes, {token: key}) for token, key in tokens.items()]
        return {place: value for one in each if one for place, value in one.items()}

    def _traced(
        self, notes: Sequence[Note], tokens: Mapping[str, Any]
    ) -> dict[tuple[int, int], object] | None:
        replaced = {key: token for token, key in tokens.items()}
        given: Any = (
            {**self._cells, **replaced}
            if isinstance(self._cells, Mapping)
            else tuple(replaced.get(place, one) for place, one in enumerate(self._cells))
        )
        try:
            again = self._again(given)
        except sqlite3.Error:  # SQLite does not take a text there
            return None
        if list(map(_row_of, again)) != list(map(_row_of, notes)):
            return None
        return {
            (row, place): self._known[tokens[content]]
            for row, note in enumerate(again)
            for place, content in enumerate(note.cells)
            if content.__class__ is str and content in tokens
        }


def same(one: object, other: object) -> bool:
    """Return whether two JSON values are one, or one of them none."""
    if isinstance(one, _STRUCTURES) and isinstance(other, _STRUCTURES):
        return canonical(one) == canonical(other)
    return one == other and type(one) is type(other)


def _is_marked(value: object) -> bool:
    return isinstance(value, (AsJson, bool, float, *_STRUCTURES, *BINARY))


def _is_number(value: object) -> bool:
    return isinstance(value, bool | float)


def _is_content(given: object, content: object) -> bool:
    """Return whether a parameter is a cell's contents, as a trigger is given it."""
    if isinstance(given, bool):
        given = int(given)
    elif isinstance(given, float):
        return False  # they are what they are
    elif isinstance(given, BINARY):
        given = bytes(given)
    return given == content and type(given) is type(content)


def _row_of(note: Note) -> tuple[object, ...]:
    return note.op, note.row_id, note.old_id
