"""Answers of an app's queries: as which Python values their columns are read, in which shape.

SQLite reports which columns of which tables a query reads, including through views, but not which
of them a column of its answer is computed from. So an answer's column is read as the column of the
same name, if the query reads one of that name and none of another type. Under any other name (``AS
text``) it is what SQLite stores.

The rows of an answer are dictionaries, tuples, or objects of the app's own. An object's field of a
certain type (``str``, ``date``, ``Decimal``, ``bytes``, ``list`` …) gets that type, whatever its
column is.
"""

from __future__ import annotations

import dataclasses
import json
import sqlite3
import types
from datetime import date, datetime
from decimal import Decimal
from functools import lru_cache, partial
from itertools import repeat
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    NamedTuple,
    TypeAlias,
    TypeVar,
    Union,
    get_args,
    get_origin,
)

from lakesync.client.storage.app_table import answer_of, only_reads, reads_of
from lakesync.client.storage.cell_values import kind_of, reader, reading, unmarked
from lakesync.client.storage.statement_capture import holds_bytes, with_base64
from lakesync.core.column_types import bytes_of
from lakesync.errors import ValidationFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from lakesync.client.storage.app_table import Answer, ColumnKey

# --- kinds of an answer's columns -----------------------------------------------------------------


Kinds: TypeAlias = "Mapping[str, str]"
"""By the name of an answer's column, as what its cells are read; not those that are the values. See
`lakesync.client.storage.cell_values.reader`.
"""
TypedAnswer: TypeAlias = "tuple[list[str], list[tuple[object, ...]], Kinds]"
"""The names of an answer's columns, its rows, and as what the columns are read."""

_QUERIES_REMEMBERED: Final = 512
_COLUMNS: Final = (
    "SELECT lower(tables.sql_name), lower(columns.sql_name), forms, declared "
    "FROM _lakesync_columns AS columns JOIN _lakesync_tables AS tables ON id = table_id "
    "WHERE columns.sql_name IS NOT NULL AND (forms <> 0 OR declared IS NOT NULL)"
)


class StoredKinds(NamedTuple):
    """The columns of the app's tables that are read as types of Python's."""

    columns: Mapping[ColumnKey, str]
    """Their types, declared or by what they have held."""
    names: frozenset[str]
    """What those are called."""
    tables: frozenset[str]
    """All synced tables."""

    def of(self, names: Sequence[str], reads: Callable[[], frozenset[ColumnKey]]) -> Kinds:
        """Return the types of an answer's columns; ``reads`` is asked only if any may have one."""
        folded = {name: small for name in names if (small := name.lower()) in self.names}
        if not folded:
            return folded
        read: dict[str, set[str]] = {}
        for table, column in reads():
            if table in self.tables:  # no view, which is told of beside what it reads
                read.setdefault(column, set()).add(self.columns.get((table, column), ""))
        kinds = {name: read.get(small, ()) for name, small in folded.items()}
        return {name: next(iter(of)) for name, of in kinds.items() if len(of) == 1 and "" not in of}

    def compared(self, read: frozenset[ColumnKey], parameters: Any) -> Any:
        """Return parameters as the columns that a query reads hold them.

        Bytes are base64 if the query reads a column that is declared so, and only synced tables.
        Other tables hold bytes unchanged, and SQLite does not report what is compared with what.
        """
        is_base64 = any(self.columns.get(key, "").startswith("bytes") for key in read)
        is_synced = all(table in self.tables for table, _ in read)
        return with_base64(parameters) if is_base64 and is_synced else parameters


NO_KINDS: Final = StoredKinds({}, frozenset(), frozenset())


def stored_kinds(connection: sqlite3.Connection) -> StoredKinds:
    """Read which columns have such types; declarations take precedence over what was written."""
    columns = {}
    for table, column, forms, declared in connection.execute(_COLUMNS).fetchall():
        name = reading(kind_of(declared or ""), forms)
        if name:
            columns[table, column] = name
    if not columns:
        return NO_KINDS
    tables = connection.execute("SELECT lower(sql_name) FROM _lakesync_tables").fetchall()
    names = frozenset(column for _, column in columns)
    return StoredKinds(columns, names, frozenset(name for (name,) in tables))


class CommittedKinds:
    """The types of what is committed, for a connection that only reads.

    The kinds of the tables' columns are read again only after a commit, and the columns that a
    query reads when it first runs: an answer without such columns costs nothing per cell.
    """

    def __init__(self, reader: sqlite3.Connection) -> None:
        self._reader = reader
        self._version: int | None = None
        self._schema_version: int | None = None
        self._stored = NO_KINDS
        self._reads: dict[str, frozenset[ColumnKey]] = {}
        self._answers: dict[str, tuple[Sequence[str], Kinds]] = {}

    def answered(self, sql: str, parameters: object) -> TypedAnswer | None:
        """Run a query; None if something was committed before its types were known."""
        self._look_again()
        version = self._version
        names, rows = answer_of(self._reader, sql, self.compared(sql, parameters))
        kinds = self._of(names, sql, parameters)
        return (names, rows, kinds) if self._version == version else None

    def _of(self, names: Sequence[str], sql: str, parameters: object) -> Kinds:
        self._look_again()
        known = self._answers.get(sql)
        if known is None or known[0] != names:  # they are others once the tables are
            reads = partial(self.reads_of, sql, parameters)
            known = names, self._stored.of(names, lambda: _read_by(reads))
            if len(self._answers) >= _QUERIES_REMEMBERED:
                self._answers.clear()
            self._answers[sql] = known
        return known[1]

    def compared(self, sql: str, parameters: object) -> object:
        if not parameters or not holds_bytes(parameters):
            return parameters
        read = _read_by(partial(self.reads_of, sql, parameters))
        return self._stored.compared(read, parameters)

    def reads_of(self, sql: str, parameters: object) -> frozenset[ColumnKey]:
        self._look_again()
        read = self._reads.get(sql)
        if read is None:
            read = reads_of(self._reader, sql, parameters)
            if len(self._reads) >= _QUERIES_REMEMBERED:
                self._reads.clear()
            self._reads[sql] = read
        return read

    def _look_again(self) -> None:
        version: int = self._reader.execute("PRAGMA data_version").fetchone()[0]
        if version == self._version:
            return
        schema: int = self._reader.execute("PRAGMA schema_version").fetchone()[0]
        stored = stored_kinds(self._reader)
        if schema != self._schema_version:
            self._reads.clear()
        if schema != self._schema_version or stored != self._stored:
            self._answers.clear()
        self._stored, self._schema_version, self._version = stored, schema, version


def own_kinds(
    writer: sqlite3.Connection, names: Sequence[str], sql: str, parameters: object
) -> Kinds:
    """Do the same inside a transaction of the writing connection, including its own writes."""
    return stored_kinds(writer).of(names, partial(_own_reads, writer, sql, parameters))


def own_answer(writer: sqlite3.Connection, sql: str, parameters: object) -> Answer:
    """Run one query inside a transaction of that connection, including its own writes."""
    if parameters and holds_bytes(parameters):
        read = _own_reads(writer, sql, parameters)
        parameters = stored_kinds(writer).compared(read, parameters)
    writer.set_authorizer(only_reads)
    try:
        return answer_of(writer, sql, parameters)
    finally:
        writer.set_authorizer(None)


def _own_reads(writer: sqlite3.Connection, sql: str, parameters: object) -> frozenset[ColumnKey]:
    try:
        return _read_by(partial(reads_of, writer, sql, parameters))
    finally:
        writer.set_authorizer(None)


def _read_by(reads: Callable[[], frozenset[ColumnKey]]) -> frozenset[ColumnKey]:
    try:
        return reads()
    except sqlite3.Error:  # what is an EXPLAIN itself cannot be explained
        return frozenset()


# --- shapes of rows -------------------------------------------------------------------------------


T = TypeVar("T")
Shape: TypeAlias = "Callable[[list[str], list[tuple[object, ...]], Kinds], list[Any]]"
"""Makes rows of the names of an answer, its rows, and the kinds of its columns."""

_CLASSES_REMEMBERED: Final = 256
_UNMARKED: Final = "unmarked"
"""The kind of a column whose cells are only brought to their plain form."""


def _by_text(made: Callable[[str], Any]) -> Callable[[Any], Any]:
    return lambda value: made(value) if isinstance(value, str) else value


_BYTES: Final = _by_text(bytes_of)
_JSON: Final = _by_text(json.loads)
_CONVERTED: Final[dict[Any, Callable[[Any], Any] | None]] = {
    str: None,
    int: None,
    bool: lambda value: bool(value) if value in (0, 1) else value,
    float: lambda value: float(value) if isinstance(value, int) else value,
    Decimal: lambda value: Decimal(str(value)),
    datetime: datetime.fromisoformat,
    date: lambda value: date.fromisoformat(value[:10]),
    bytes: _BYTES,
    list: _JSON,
    dict: _JSON,
}
"""What a field of a type makes of what SQLite stores, None for nothing. A field of another type
takes what the column is read as."""
_CONVERTED_FOR_PYDANTIC: Final[dict[Any, Callable[[Any], Any] | None]] = {
    **dict.fromkeys((str, int)),
    **dict.fromkeys((list, dict, tuple, set), _JSON),
    bytes: _BYTES,
}
"""The same for a pydantic model, which reads the rest from either."""


def shape(as_: Any) -> Shape:
    """Return what makes rows of ``dict``, ``tuple``, a dataclass or a pydantic model."""
    if as_ is dict:
        return _dicts
    if as_ is tuple:
        return _tuples
    if isinstance(as_, type) and dataclasses.is_dataclass(as_):
        return _dataclasses(as_)
    if isinstance(as_, type) and callable(getattr(as_, "model_validate", None)):
        return _pydantic_models(as_)
    raise ValidationFailed(
        f"as_ is dict, tuple, a dataclass or a pydantic model, not {as_!r}", field="as_"
    )


def _dicts(
    names: list[str], answer: list[tuple[object, ...]], kinds: Kinds
) -> list[dict[str, Any]]:
    distinct = _distinct(names)
    # As dict(zip(...)) for each row, a quarter faster.
    rows: list[dict[str, Any]] = list(map(dict, map(zip, repeat(distinct), answer)))
    for name, shown in zip(names, distinct, strict=True):
        if name in kinds:
            kind = kinds[name]
            read = unmarked if kind == _UNMARKED else reader(kind)
            for row in rows:
                row[shown] = read(row[shown])
    return rows


def _tuples(
    names: list[str], answer: list[tuple[object, ...]], kinds: Kinds
) -> list[tuple[object, ...]]:
    if not kinds:
        return answer
    return [tuple(row.values()) for row in _dicts(names, answer, kinds)]


@lru_cache(_CLASSES_REMEMBERED)
def _dataclasses(cls: Any) -> Shape:
    """Return a maker of objects of a dataclass; it leaves out columns without a field."""
    import typing  # noqa: PLC0415 - an app that takes dictionaries does not resolve types

    try:
        hints = typing.get_type_hints(cls)
    except Exception as exc:
        raise ValidationFailed(f"the types of {cls.__name__} are unknown: {exc}") from exc
    made = [field for field in dataclasses.fields(cls) if field.init]
    convert = _of_fields({field.name: hints[field.name] for field in made}, _CONVERTED)
    missing = dataclasses.MISSING
    fields = [field.name for field in made]
    needed = {field.name for field in made if field.default is missing is field.default_factory}

    def rows(names: list[str], answer: list[tuple[object, ...]], kinds: Kinds) -> list[Any]:
        if lacking := sorted(needed - set(names)):
            raise ValidationFailed(
                f"{cls.__name__} needs {', '.join(lacking)}, which the query does not give",
                field="as_",
            )
        return [
            _made(lambda row=row: cls(**_converted(row, convert, fields)), cls)  # type: ignore[misc]
            for row in _dicts(names, answer, _left_to(kinds, convert))
        ]

    return rows


@lru_cache(_CLASSES_REMEMBERED)
def _pydantic_models(cls: Any) -> Shape:
    """Return what makes objects of a pydantic model, which checks what it is given."""
    hints: dict[str, Any] = {}
    for name, field in getattr(cls, "model_fields", {}).items():
        # Metadata such as that of Base64Bytes and Json says that the field reads text itself.
        reads_text = any(
            hasattr(part, "encoder") or part.__class__.__name__ == "Json" for part in field.metadata
        )
        for key in {name, field.alias, field.validation_alias}:
            if isinstance(key, str):
                hints[key] = str if reads_text else field.annotation
    convert = _of_fields(hints, _CONVERTED_FOR_PYDANTIC)
    return lambda names, answer, kinds: [
        _made(lambda row=row: cls.model_validate(_converted(row, convert, row)), cls)  # type: ignore[misc]
        for row in _dicts(names, answer, _left_to(kinds, convert))
    ]


def _of_fields(
    hints: Mapping[str, Any], converted: Mapping[Any, Callable[[Any], Any] | None]
) -> dict[str, Callable[[Any], Any] | None]:
    """Return the changes of those fields whose type says what they are given."""
    plain = {name: _plain(hint) for name, hint in hints.items()}
    return {name: converted[hint] for name, hint in plain.items() if _is_known(hint, converted)}


def _is_known(hint: Any, converted: Mapping[Any, object]) -> bool:
    return isinstance(hint, type) and hint in converted


def _left_to(kinds: Kinds, names: Collection[str]) -> Kinds:
    """Return the kinds of an answer of which some columns' cells are left to fields to convert."""
    return {name: _UNMARKED if name in names else kind for name, kind in kinds.items()}


def _converted(
    row: dict[str, Any], convert: Mapping[str, Callable[[Any], Any] | None], fields: Iterable[str]
) -> dict[str, Any]:
    """Return the values of an object's fields; null is null."""
    return {
        name: value if value is None or change is None else change(value)
        for name in fields
        if name in row
        for value, change in ((row[name], convert.get(name)),)
    }


def _plain(hint: Any) -> Any:
    """Return the type that a hint names, without ``| None`` and what it is made of."""
    if get_origin(hint) in (Union, types.UnionType):
        others = [part for part in get_args(hint) if part is not type(None)]
        return _plain(others[0]) if len(others) == 1 else None
    return get_origin(hint) or hint


def _made(make: Callable[[], T], cls: Any) -> T:
    try:
        return make()
    except Exception as exc:
        raise ValidationFailed(
            f"a row is no {cls.__name__}: {exc}; correct the row, or what the class asks",
            field="as_",
        ) from exc


def _distinct(names: list[str]) -> list[str]:
    """Return each column a name of its own: the second ``a`` is ``a:1``."""
    if len(set(names)) == len(names):
        return names
    distinct: list[str] = []
    for name in names:
        number, candidate = 0, name
        while candidate in distinct or (number and candidate in names):
            number += 1
            candidate = f"{name}:{number}"
        distinct.append(candidate)
    return distinct
