"""As which of Python's types the columns of an answer are read.

SQLite reports which columns of which tables a query reads, including through views, but not which
of them a column of its answer is computed from. So an answer's column is read as the column of the
same name, if the query reads one of that name and none of another type. Under any other name (``AS
text``) it is what SQLite stores.
"""

from __future__ import annotations

import sqlite3
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from lakesync.client.storage.cells import reading
from lakesync.client.storage.parameters import holds_bytes, with_base64
from lakesync.client.storage.python_values import kind_of
from lakesync.client.storage.reading import answer_of, only_reads, reads_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from lakesync.client.storage.reading import Answer, ColumnKey

Kinds: TypeAlias = "Mapping[str, str]"
"""By the name of an answer's column, as what its cells are read; not those that are the values. See
`lakesync.client.storage.cells.reader`.
"""

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

    def of(self, names: Sequence[str], sql: str, parameters: object) -> Kinds:
        """Return as what the columns of a query's answer are read."""
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
        """Do `StoredKinds.compared` for a query."""
        if not parameters or not holds_bytes(parameters):
            return parameters
        read = _read_by(partial(self.reads_of, sql, parameters))
        return self._stored.compared(read, parameters)

    def reads_of(self, sql: str, parameters: object) -> frozenset[ColumnKey]:
        """Return the columns that a query reads; see `lakesync.client.storage.reading.reads_of`."""
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
