"""Extracts rows from one resource by dlt, and stores them before they are returned.

An *extraction* reads a resource from the state that the previous one left. It reads to the end, or,
if rows arrive in the order of their cursors, as far as time allows. It stores the rows as objects
in the connector's storage, its *parts*, which are given one by one. One more object holds dlt's
state and the number of parts.

Rules of extractions
    1. The state that an extraction leaves is written after all of its parts. If the process is
       killed before, the extraction is repeated from the same state.
    2. After that a part is never rewritten, so reading it again gives the same rows. It is removed
       once the cursor behind it is durable.
    3. Of rows without the cursor by which a resource is read, one of each extraction is reported.
       If no row of the first extraction has one, the resource is refused.
    4. Memory holds one part, and what dlt yields at once; for rows without a cursor also a digest
       each, at most `LISTED_ROWS_MAX`.

A cursor is the number of an extraction, and the number of its parts that were given.

How one dlt resource is read: where reading may resume, and which rows are deletions. Uses internals
of dlt (the parts of a pipe) that may change; `requirements` pin its version, and the contract suite
is run against it.
"""

from __future__ import annotations

import hashlib
import json
import time
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from dlt.common import json as dlt_json
from dlt.common import jsonpath
from dlt.common.configuration.container import Container
from dlt.common.configuration.resolve import inject_section
from dlt.common.pipeline import StateInjectableContext
from dlt.common.schema import Schema
from dlt.extract.incremental import Incremental
from dlt.extract.pipe_iterator import ManagedPipeIterator
from dlt.extract.source import (
    SourceInjectableContext,
    SourceSchemaInjectableContext,
    _DltSingleSource,
)

from lakesync.connectors.missing_rows import LISTED_ROWS_MAX
from lakesync.connectors.pages import identifier, microseconds
from lakesync.connectors.port import Change, SourcePage, Unreadable, digest
from lakesync.errors import AdapterRefused
from lakesync.systems.sql.database_values import json_value
from lakesync.systems.sql.table_plan import row_id_of

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping, Sequence

    from dlt.extract import DltResource

    from lakesync.connectors.port import Storage
    from lakesync.systems.dlt.dlt_settings import DltTable

EXTRACT_S_MAX: Final = 15.0
"""How long a resource that must be read whole may take; a poll's function ends after 29 s."""
_EXTRACT_S: Final = 6.0
"""When an extraction that may be left is left."""
_EXTRACT_PARTS: Final = 10
"""After how many parts it is left, too."""
_FOLDER: Final = "dlt"


class Extracted(NamedTuple):
    """A completed extraction, as it is stored."""

    number: int
    parts: int
    is_complete: bool
    """Whether the source was read to its end."""
    state: str
    """dlt's, as its own JSON."""


class Extraction:
    """Extracts one resource, part by part."""

    def __init__(self, reading: Reading, rows: Rows, storage: Storage, table: str) -> None:
        self._reading = reading
        self._rows = rows
        self._storage = storage
        self._path = (_FOLDER, digest(table))
        # A source that reports neither new rows nor change times is read by comparison.
        self._lacking = self._has_cursor = False
        self._compares = reading.is_whole or not (reading.is_incremental or rows.is_dated)

    def page(self, cursor: str, rows_max: int) -> SourcePage:
        """Return the part behind a cursor; extract, if all was given."""
        number, given = _placed(cursor)
        kept = self._kept()
        if kept.number != number:  # the process was killed before it saved its cursor
            return self._part(kept, 0)
        if given:
            self._storage.remove(*self._path, f"part{given - 1}")
        if given < kept.parts:
            return self._part(kept, given)
        kept = self._extracted(kept, rows_max)
        if kept.number == number:
            return SourcePage((), cursor, has_more=False)
        return self._part(kept, 0)

    def _part(self, kept: Extracted, given: int) -> SourcePage:
        stored = self._storage.read(*self._path, f"part{given}") if given < kept.parts else None
        changes, unreadable = stored or ((), ())
        return SourcePage(
            tuple(Change(*each) for each in changes),
            f"{kept.number}:{min(given + 1, kept.parts)}",
            has_more=given + 1 < kept.parts or not kept.is_complete,
            unreadable=tuple(Unreadable(*each) for each in unreadable),
        )

    def _kept(self) -> Extracted:
        stored = self._storage.read(*self._path, "extracted")
        return Extracted(**stored) if stored else Extracted(0, 0, True, "{}")

    def _extracted(self, before: Extracted, rows_max: int) -> Extracted:
        """Extract from the stored state; returns the previous extraction if nothing is new."""
        state = dlt_json.typed_loads(before.state)
        parts = _Parts(self._storage, self._path, rows_max)
        compared = Comparison(self._storage, self._path, before.number) if self._compares else None
        is_complete, left = True, before.state
        self._lacking, self._has_cursor = False, bool(before.number)
        began = time.monotonic()
        for rows in pages_of(self._reading.resource, state):
            spent_s = time.monotonic() - began
            is_enough = parts.count >= _EXTRACT_PARTS or spent_s > _EXTRACT_S
            here = _dumped(state)
            may_leave = self._reading.is_ordered and is_enough and before.state not in {here, left}
            if may_leave and not self._reading.is_root and here != left:
                is_complete = False  # of the parent's rows before all was given, of these nothing
                break
            self._add(rows, parts, compared)
            left = here
            if may_leave and self._reading.is_root:
                is_complete = False
                break
            if spent_s > EXTRACT_S_MAX:
                raise AdapterRefused(
                    f"it was not read whole within {EXTRACT_S_MAX:g} s: read it by incremental "
                    'with row_order "asc", so that it may be read in parts'
                )
        else:
            left = _dumped(state)
        return self._ended(before, parts, compared, is_complete=is_complete, state=left)

    def _ended(
        self,
        before: Extracted,
        parts: _Parts,
        compared: Comparison | None,
        *,
        is_complete: bool,
        state: str,
    ) -> Extracted:
        if self._lacking and not self._has_cursor:
            raise AdapterRefused(
                f"no row has a value of {self._reading.cursor_path}, by which it is read: set "
                "on_cursor_value_missing, or name another cursor_path"
            )
        if compared is not None and self._reading.is_whole:
            for row_id in compared.gone():
                parts.add(Change(row_id, None))
        parts.end()
        if not parts.count and is_complete and state == before.state:
            return before
        if compared is not None:
            compared.write(before.number + 1)
        kept = Extracted(before.number + 1, parts.count, is_complete, state)
        self._storage.write(kept._asdict(), *self._path, "extracted")
        return kept

    def _add(self, rows: Sequence[Any], parts: _Parts, compared: Comparison | None) -> None:
        for row in rows:
            if self._rows.lacks_cursor(row):
                if not self._lacking:
                    parts.add(self._rows.without_cursor(row))
                self._lacking = True
                continue
            self._has_cursor = True
            change = self._rows.change(row)
            if compared is None or compared.is_new(change):
                parts.add(change)


class _Parts:
    """The parts of an extraction in progress."""

    def __init__(self, storage: Storage, path: tuple[str, ...], rows_max: int) -> None:
        self._storage = storage
        self._path = path
        self._rows_max = rows_max
        self._changes: list[Change] = []
        self._unreadable: list[Unreadable] = []
        self.count = 0

    def add(self, change: Change | Unreadable) -> None:
        if isinstance(change, Unreadable):
            self._unreadable.append(change)
        else:
            self._changes.append(change)
        if len(self._changes) + len(self._unreadable) >= self._rows_max:
            self.end()

    def end(self) -> None:
        """Store the rows that were added, if any."""
        if self._changes or self._unreadable:
            part = (self._changes, self._unreadable)
            self._storage.write(part, *self._path, f"part{self.count}")
            self.count += 1
            self._changes, self._unreadable = [], []


def _dumped(state: dict[str, Any]) -> str:
    """Return dlt's state as text: the same for the same state, in any process."""
    return str(dlt_json.typed_dumps(_sorted(state), sort_keys=True))


def _sorted(state: Any) -> Any:
    if not isinstance(state, dict):
        return state
    return {
        # Out of a set, in whatever order it is in this process.
        name: sorted(part) if name == "unique_hashes" else _sorted(part)
        for name, part in state.items()
    }


def _placed(cursor: str) -> tuple[int, int]:
    number, _, given = cursor.partition(":")
    return int(number or 0), int(given or 0)


# --- how a resource is read -----------------------------------------------------------------------


MODIFIED: Final = "(modified)"
"""A key in rows read from a file: when the file was written. It is not a column."""


class Reading(NamedTuple):
    """How a resource is read."""

    resource: DltResource
    key: tuple[str, ...]
    columns: Mapping[str, Mapping[str, Any]]
    """dlt's hints of columns, by name."""
    changed_at: str
    """The JSON path to a row's change time; empty if its rows have none."""
    is_incremental: bool
    is_ordered: bool
    """Its cursors are in order: reading may stop before the end, and resume there."""
    is_root: bool
    """Whether it does not depend on another resource, so that its state matches the rows that it
    returned."""
    is_whole: bool
    """What a reading lacks is gone: dlt's ``replace``."""
    cursor_path: str
    """The JSON path to the cursor that each row must have; empty if rows may lack one."""


def reading_of(resource: DltResource, table: DltTable) -> Reading:
    """Return how a resource is read.

    Raises:
        AdapterRefused: it cannot be read.
    """
    schema = resource.compute_table_schema()
    columns = {str(name): dict(hint) for name, hint in schema.get("columns", {}).items()}
    key = tuple(name for name, hint in columns.items() if hint.get("primary_key"))
    if not key:
        raise AdapterRefused(
            f"{table.name} has no primary key: name the columns that identify a row as "
            "primary_key, in its hints"
        )
    incremental = _incremental(resource)
    is_whole = resource.write_disposition == "replace"
    if incremental is not None and is_whole:
        raise AdapterRefused(
            f"{table.name} is read by incremental, and would replace what did not change: make its "
            "write_disposition merge"
        )
    cursor_path = ""
    if incremental is not None and incremental.on_cursor_value_missing == "raise":
        # A row without a cursor would end the reading of its table; see `Extraction`.
        incremental.on_cursor_value_missing = "include"
        cursor_path = "" if resource.is_transformer else str(incremental.cursor_path)
    return Reading(
        resource,
        key,
        columns,
        table.changed_at or _changed_at(resource, incremental),
        is_incremental=incremental is not None,
        is_ordered=incremental is not None and _ascends(incremental),
        is_root=resource._pipe.parent is None,  # noqa: SLF001 - as dlt's own extraction reads it
        is_whole=is_whole,
        cursor_path=cursor_path,
    )


def _incremental(resource: DltResource) -> Incremental[Any] | None:
    """Return the incremental of a resource, or of the first resource that it is made from."""
    step: Any = resource.incremental
    own: Incremental[Any] | None = getattr(step, "incremental", step)
    if own is None:
        arguments: Any = (resource.explicit_args if resource.args_bound else None) or {}
        own = next((each for each in arguments.values() if isinstance(each, Incremental)), None)
    parent: Any = resource._parent  # noqa: SLF001
    if own is None and parent is not None:
        return _incremental(parent)
    return own


def _changed_at(resource: DltResource, incremental: Incremental[Any] | None) -> str:
    """Return the field with its rows' change times; for a file's rows, when it was written."""
    if incremental is None:
        return ""
    path = str(incremental.cursor_path)
    if not resource.is_transformer:
        return path
    return MODIFIED if path == "modification_date" else ""


def _ascends(incremental: Incremental[Any]) -> bool:
    # A closed range: rows with the last cursor that were not given yet are read, too.
    return incremental.range_start == "closed" and incremental.row_order == "asc"


def pages_of(resource: DltResource, state: dict[str, Any]) -> Generator[list[Any], None, None]:
    """Yield what a resource yields, a list at a time; its state is kept up to that list.

    Args:
        state: dlt's state of pipelines, changed in place.
    """
    kept = StateInjectableContext(state=state)  # type: ignore[arg-type]  # a part of dlt's
    section = resource._get_config_section_context()  # noqa: SLF001 - as DltResource.__iter__
    schema = Schema(section.source_state_key)
    source = _DltSingleSource(schema, resource.section, [resource])
    contexts = [
        kept,
        SourceInjectableContext(source),
        SourceSchemaInjectableContext(source.discover_schema()),
    ]
    container = Container()
    with (
        inject_section(section),
        container.injectable_context(contexts[0]),
        container.injectable_context(contexts[1]),
        container.injectable_context(contexts[2]),
    ):
        # First in, first out: a parent's page is read completely before its next.
        pipes: Any = ManagedPipeIterator.from_pipes([resource._pipe], next_item_mode="fifo")  # noqa: SLF001
    pipes.set_context([*contexts, section])
    try:
        for each in pipes:
            yield _rows_in(each.item)
    finally:
        pipes.close()


def _rows_in(item: Any) -> list[Any]:
    item = getattr(item, "data", item) if type(item).__name__ == "DataItemWithMeta" else item
    if hasattr(item, "to_pylist"):  # an Arrow table
        return list(item.to_pylist())
    return list(item) if isinstance(item, list | tuple) else [item]


# --- rows as changes ------------------------------------------------------------------------------


_SECONDS_MAX: Final = 100_000_000_000
"""Numbers below are seconds since 1970, numbers above are milliseconds; up to the year 5138."""
_TYPES: Final = {
    "text": "string", "double": "number", "bool": "boolean", "timestamp": "timestamp",
    "bigint": "integer", "binary": "bytes", "json": "json", "decimal": "string",
    "wei": "string", "date": "date", "time": "string",
}  # fmt: skip
"""Types of columns by dlt's names; of what JSON would round, text."""


class Rows:
    """Makes changes of one resource's rows."""

    def __init__(self, reading: Reading) -> None:
        self._key = reading.key
        self._changed = _reader(reading.changed_at) if reading.changed_at else None
        self._marks = tuple(
            (name, hint.get("data_type"))
            for name, hint in reading.columns.items()
            if hint.get("hard_delete")
        )
        self._names: dict[str, str] = {MODIFIED: ""}
        self.is_dated = self._changed is not None
        self._cursor = _value_at(reading.cursor_path) if reading.cursor_path else None
        self._cursor_path = reading.cursor_path

    def lacks_cursor(self, row: Any) -> bool:
        """Return whether a row has no value by which dlt would tell that it was read."""
        if self._cursor is None:
            return False
        return self._cursor(row if isinstance(row, dict) else vars(row)) is None

    def without_cursor(self, row: Any) -> Unreadable:
        """Return a row that lacks its cursor as one that cannot be read."""
        change = self.change(row)
        reason = (
            f"it has no {self._cursor_path}, by which the table is read, so that it is not read, "
            "nor other rows without: set it, set on_cursor_value_missing to include, or read the "
            "table without incremental"
        )
        return Unreadable(change.row_id, reason)

    def change(self, row: Any) -> Change | Unreadable:
        columns = dict(row if isinstance(row, dict) else vars(row))
        try:
            values = [json_value(columns.get(name), "") for name in self._key]
        except ValueError:
            values = [None]
        if None in values:
            return Unreadable("", f"a row has no {', '.join(self._key)}, by which it is known")
        row_id = row_id_of(values)
        try:
            changed_us = self._changed(columns) if self._changed else None
            if any(_is_marked(columns.get(name), kind) for name, kind in self._marks):
                return Change(row_id, None, changed_us)
            return Change(row_id, self._values(columns), changed_us)
        except ValueError as exc:
            return Unreadable(row_id, str(exc))

    def _values(self, columns: Mapping[str, Any]) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for column, value in columns.items():
            name = self._names.get(column)
            if name is None:
                name = self._names[column] = identifier(str(column))
            if not name:
                continue
            if name in values:
                raise ValueError(f"two columns of it would be called {name}")
            try:
                values[name] = json_value(value, "")
            except ValueError as exc:
                raise ValueError(f"the column {name}: {exc}") from exc
        return values


def _is_marked(value: Any, data_type: Any) -> bool:
    """Return whether a column with dlt's hint ``hard_delete`` marks its row as deleted."""
    if data_type == "bool" or isinstance(value, bool):
        return bool(value)
    return value is not None


def _reader(path: str) -> Callable[[dict[str, Any]], int | None]:
    """Return the function that reads a row's change time, in microseconds since 1970, or None."""
    if path == MODIFIED:
        return lambda row: instant_us(row.get(MODIFIED))
    value_at = _value_at(path)
    return lambda row: instant_us(value_at(row))


def _value_at(path: str) -> Callable[[dict[str, Any]], Any]:
    """Return the function that reads a row's value at a JSON path, or None."""
    compiled = jsonpath.compile_path(path)
    simple = jsonpath.extract_simple_field_name(compiled)
    if simple is not None:
        return lambda row: row.get(simple)
    return lambda row: next(iter(jsonpath.find_values(compiled, row)), None)


def instant_us(value: object) -> int | None:
    """Return an instant in microseconds since 1970; None if the value is not an instant.

    Days are not instants: a row may change twice on one.
    """
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value) if len(value) > len("2026-01-01") else None
        except ValueError:
            return None
    if isinstance(value, datetime):
        return microseconds(value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        seconds = value if abs(value) < _SECONDS_MAX else value / 1000
        return round(seconds * 1_000_000)
    return None


def column_type(hint: Mapping[str, Any], value: object) -> str:
    if hint.get("data_type"):
        return _TYPES.get(str(hint["data_type"]), "string")
    match value:
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case datetime():
            return "timestamp"
        case dict() | list():
            return "json"
        case _:
            return "string"


# --- comparison -----------------------------------------------------------------------------------


_DIGEST_DIGITS: Final = 24


class Comparison:
    """Compares rows with those of the previous extraction, by digests.

    Digests are stored under the extraction's number, so a repeated extraction compares with the
    same ones. A row that occurs twice in one extraction is returned once; if it changed in between,
    the next extraction returns the change.
    """

    def __init__(self, storage: Storage, path: tuple[str, ...], number: int) -> None:
        self._storage = storage
        self._path = path
        self._before: dict[str, str] = storage.read(*path, f"digests{number % 2}") or {}
        self._seen: dict[str, str] = {}

    def is_new(self, change: Change | Unreadable) -> bool:
        """Return whether a change differs from the previous extraction, and is not given yet."""
        if isinstance(change, Change) and change.columns is None:
            self._seen.pop(change.row_id, None)
            return self._before.pop(change.row_id, None) is not None
        if change.row_id in self._seen:
            return False
        said = change.columns if isinstance(change, Change) else change.reason
        text = json.dumps(said, sort_keys=True)
        row_digest = hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_DIGITS]
        if change.row_id:
            self._seen[change.row_id] = row_digest
        if len(self._seen) > LISTED_ROWS_MAX:
            raise AdapterRefused(
                f"it has over {LISTED_ROWS_MAX} rows, which are compared, as they have no time "
                "of their last change: read it by incremental"
            )
        return self._before.get(change.row_id) != row_digest

    def gone(self) -> Iterator[str]:
        """Return the ids of previous rows that no longer exist."""
        return (row_id for row_id in self._before if row_id not in self._seen)

    def write(self, number: int) -> None:
        """Store the digests for the next extraction."""
        self._storage.write(self._seen, *self._path, f"digests{number % 2}")
