"""What a client and its transaction both offer an app: rows edited by methods or SQL, and read.

`Editor` is what both offer; a `Transaction` is several edits that are committed, and pushed, as
one. How an edit is written is in `lakesync.client.storage.editor`.
"""

from __future__ import annotations

import contextlib
import json
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar, overload

from lakesync.client.storage.app_catalogue import checked_name, delete_wins_in
from lakesync.client.storage.cell_values import kind_of, read_value
from lakesync.client.storage.edits import Writer, encoded, execute, write_alone
from lakesync.client.storage.misuse import checked_text
from lakesync.client.storage.queries import own_answer, own_kinds, shape
from lakesync.client.storage.sqlite_file import attempt, query_result
from lakesync.client.storage.statement_capture import as_cells
from lakesync.client.storage.stored_state import Places, decode
from lakesync.core.delta import Op, check_row_id, parse
from lakesync.core.merge import as_read, fold, view
from lakesync.core.names import folded
from lakesync.errors import ValidationFailed
from lakesync.result import Err, Result
from lakesync.wire.records import decode_records

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from lakesync.client.storage.app_table import Answer
    from lakesync.client.storage.file import ClientFile
    from lakesync.client.storage.queries import TypedAnswer
    from lakesync.core.delta import CanonicalJson, Delta
    from lakesync.core.merge import RowState
    from lakesync.errors import LakeSyncError

# --- the editor -----------------------------------------------------------------------------------


T = TypeVar("T")

_NOTHING: Final[Mapping[str, object]] = {}
_OF_TABLE: Final = (
    "(SELECT group_concat(name) FROM (SELECT columns.name FROM _lakesync_columns AS columns "
    "WHERE columns.table_id = id ORDER BY place)), "
    "(SELECT json_group_object(columns.name, declared) FROM _lakesync_columns AS columns "
    "WHERE columns.table_id = id AND declared IS NOT NULL)"
)
"""A table's columns: their names in order, and their declared types."""
_STATE: Final = (
    f"SELECT state, {_OF_TABLE}, "  # noqa: S608 - ours
    "(SELECT CASE WHEN schemas LIKE '%deleteWins%' THEN schemas ELSE '' END FROM _lakesync_sync), "
    "name "
    "FROM _lakesync_rows JOIN _lakesync_tables ON id = table_id "
    "WHERE name = ?1 AND row_id = ?2 "
    # A new row may have no state yet: then its insert is in the outbox.
    f"UNION ALL SELECT run, {_OF_TABLE}, NULL, name FROM _lakesync_outbox JOIN _lakesync_tables "
    "ON id = table_id WHERE name = ?1 AND row_id = ?2 "
    "AND hlc > (SELECT folded FROM _lakesync_sync) AND NOT EXISTS (SELECT 1 FROM _lakesync_rows "
    "AS row WHERE row.table_id = id AND row.row_id = ?2) LIMIT 1"
)


def _state(stored: bytes, names: str | None, schemas: str | None, table: str) -> RowState:
    """Return a row with its values, as its table reads it; without looking up who wrote them."""
    ordered = (names or "").split(",")
    if schemas is None:
        state = fold(decode_records(stored))
        columns = {name: state.columns[name] for name in ordered if name in state.columns}
        return state._replace(columns=columns)
    state = decode(stored, Places(ordered), str)
    return as_read(state, delete_wins=folded(table) in delete_wins_in(schemas))


def _values(columns: Mapping[str, CanonicalJson], declared: str) -> dict[str, Any]:
    if declared == "{}":
        return {name: read_value("", raw) for name, raw in columns.items()}
    types = json.loads(declared)
    return {name: read_value(kind_of(types.get(name, "")), raw) for name, raw in columns.items()}


class Editor(ABC):
    """What a client and its transaction both offer: reads, and edits; an ``Err`` wrote nothing."""

    _file: ClientFile

    def insert(
        self, table: str, row_id: str, columns: Mapping[str, object] = _NOTHING
    ) -> Result[Delta, LakeSyncError]:
        """Make a row exist, with these columns; an existing row keeps its other columns."""
        return self._edit(Op.INSERT, table, row_id, columns)

    def upsert(
        self, table: str, row_id: str, columns: Mapping[str, object] = _NOTHING
    ) -> Result[Delta, LakeSyncError]:
        """Do the same as `insert`, which never asks whether a row exists already."""
        return self._edit(Op.INSERT, table, row_id, columns)

    def update(
        self, table: str, row_id: str, columns: Mapping[str, object]
    ) -> Result[Delta, LakeSyncError]:
        """Write at least one column of a row, whether or not this client has seen the row.

        If the row does not exist anywhere, these columns create it, except in a delete-wins table.
        """
        return self._edit(Op.UPDATE, table, row_id, columns)

    def delete(self, table: str, row_id: str) -> Result[Delta, LakeSyncError]:
        """Delete a row, whether or not this client has seen it; as `update`."""
        return self._edit(Op.DELETE, table, row_id, _NOTHING)

    def get(self, table: str, row_id: str) -> Result[dict[str, Any] | None, LakeSyncError]:
        """Return a row's columns as they were written (true is true, a list a list), or None.

        A declared column gives Python's ``date``, ``datetime``, ``Decimal`` or ``bytes``.
        """

        def state() -> dict[str, Any] | None:
            key = checked_name(table, "table"), check_row_id(checked_text(row_id, "rowId"))
            _, rows = self._read(_STATE, key)
            if not rows:
                return None
            stored, names, declared, *read_by = rows[0]
            columns = view(_state(stored, names, *read_by))  # type: ignore[arg-type]
            return columns and _values(columns, str(declared))

        return self._attempt(state)

    @overload
    def query(
        self, sql: str, parameters: Sequence[object] | Mapping[str, object] = ...
    ) -> Result[list[dict[str, Any]], LakeSyncError]: ...

    @overload
    def query(
        self,
        sql: str,
        parameters: Sequence[object] | Mapping[str, object] = ...,
        *,
        as_: type[T],
    ) -> Result[list[T], LakeSyncError]: ...

    def query(
        self,
        sql: str,
        parameters: Sequence[object] | Mapping[str, object] = (),
        *,
        as_: type[Any] = dict,
    ) -> Result[list[Any], LakeSyncError]:
        """Run one statement that only reads; each row is a dictionary.

        Every table has its row ids in ``_row_id``. A second column of the same name is ``name:1``,
        as in SQLite's own subqueries. If a column of the answer has the name of a column that the
        query reads, it is read as that column: declared dates, timestamps, decimals, bytes,
        booleans and JSON as Python's types, and booleans also where nothing else was ever written.
        Under another name it is what SQLite stores: text, numbers, 1 and 0; so are undeclared
        objects and lists. ``VALIDATION_ERROR`` if SQLite refuses the query, or if it would do more
        than read.

        ``as_`` makes each row a ``tuple``, or an object of a dataclass or pydantic model: its
        fields are the columns of the same names, and a field's type determines its value.
        Parameters may be dates and decimals, and bytes, which match declared bytes if the query
        reads synced tables only.
        """

        def rows() -> list[Any]:
            shaped, given = shape(as_), as_cells(parameters)
            return shaped(*self._typed(sql, given))

        return query_result(rows)

    def insert_many(
        self, table: str, rows: Mapping[str, Mapping[str, object]]
    ) -> Result[int, LakeSyncError]:
        """Insert rows by their ids, all of them or none; returns how many.

        One write to the disk, hence much faster than single edits. They are sent in large batches,
        each row independent of the others: if others must see all of them or none, use
        ``transaction()``.
        """

        def insert(writer: Writer) -> int:
            if not isinstance(rows, Mapping):
                raise ValidationFailed("rows map row ids to columns", field="rows")
            for row_id, columns in rows.items():
                writer.write(Op.INSERT, table, row_id, columns)
            return len(rows)

        return self._edits(f"insert_many into {table!r}", insert, is_group=False)

    def execute(
        self, sql: str, parameters: Sequence[object] | Mapping[str, object] = ()
    ) -> Result[int, LakeSyncError]:
        """Run one INSERT, UPDATE or DELETE; returns how many rows it wrote.

        Each row of a synced table is an edit, and all of them are one transaction. For an updated
        row only the columns that it changes are written. Parameters may be dates, decimals, bytes,
        lists and dictionaries. ``VALIDATION_ERROR`` with the reason, and nothing written, if SQLite
        refuses the statement or it cannot become edits: it changes a ``_row_id``, stores bytes
        where none are declared, or has RETURNING. Tables that are not synced are local: they stay
        on this device, and are made by CREATE TABLE; synced ones are declared.
        """
        what = f"execute of {str(sql)[:80]!r}"
        return self._edits(
            what, lambda writer: execute(self._file, writer, sql, parameters), is_group=True
        )

    @abstractmethod
    def _edits(
        self, what: str, operation: Callable[[Writer], T], *, is_group: bool
    ) -> Result[T, LakeSyncError]: ...

    @abstractmethod
    def _edit(
        self, op: Op, table: str, row_id: str, columns: Mapping[str, object]
    ) -> Result[Delta, LakeSyncError]: ...

    @abstractmethod
    def _read(self, sql: str, parameters: object) -> Answer: ...

    @abstractmethod
    def _typed(self, sql: str, parameters: object) -> TypedAnswer: ...

    @abstractmethod
    def _attempt(self, operation: Callable[[], Any]) -> Result[Any, LakeSyncError]: ...


# --- transactions ---------------------------------------------------------------------------------


_NO_PARAMS: Final[Mapping[str, Any]] = {}


class Transaction(Editor):
    """The edits of one ``with client.transaction() as tx``: all of them are committed, or none.

    It reads its own writes. A ``RuntimeError`` on another thread, and after its block.
    """

    def __init__(self, file: ClientFile) -> None:
        self._file = file
        self._thread = threading.get_ident()
        self.is_open = True
        self.failure: LakeSyncError | None = None
        """Why it cannot be committed any more."""
        self._writer = Writer(file, is_group=True)

    def _edit(
        self, op: Op, table: str, row_id: str, columns: Mapping[str, object]
    ) -> Result[Delta, LakeSyncError]:
        return self._joined(lambda: self._writer.write(op, table, row_id, columns))

    def _edits(
        self, what: str, operation: Callable[[Writer], T], *, is_group: bool
    ) -> Result[T, LakeSyncError]:
        del what, is_group  # all of it belongs to this transaction, which nobody drops unheard
        return self._joined(lambda: operation(self._writer))

    def _joined(self, join: Callable[[], T]) -> Result[T, LakeSyncError]:
        result: Result[T, LakeSyncError] = self._attempt(join)
        self.failure = result.error if isinstance(result, Err) else None
        return result

    def run_action(
        self,
        connector: str,
        action: str,
        params: Mapping[str, Any] = _NO_PARAMS,
        *,
        idempotency_key: str = "",
    ) -> Result[str, LakeSyncError]:
        """Queue an action with the edits of this transaction, or not at all; returns its id.

        It is sent after the gateway has accepted them; see `Actions.run`, and `Actions.find` for
        its result.
        """
        return self._joined(
            lambda: (
                self._file.actions.add(
                    connector, action, params, idempotency_key, after_edits=True
                ).action_id
            )
        )

    def _read(self, sql: str, parameters: object) -> Answer:
        self._must_be_open()
        return own_answer(self._file.connection, sql, parameters)

    def _typed(self, sql: str, parameters: object) -> TypedAnswer:
        names, rows = self._read(sql, parameters)
        return names, rows, own_kinds(self._file.connection, names, sql, parameters)

    def _attempt(self, operation: Callable[[], Any]) -> Result[Any, LakeSyncError]:
        self._must_be_open()
        return attempt(operation) if self.failure is None else Err(self.failure)

    def _must_be_open(self) -> None:
        if not self.is_open or self._thread != threading.get_ident():
            raise RuntimeError("a transaction ends with its block, and stays on its thread")


@contextlib.contextmanager
def local_transaction(file: ClientFile) -> Iterator[Transaction]:
    """See `Client.transaction`; after an ``Err`` all edits give it, and the block raises it."""
    with file.database.transaction():
        transaction = Transaction(file)
        try:
            yield transaction
        finally:
            transaction.is_open = False
        if transaction.failure is not None:
            raise transaction.failure


def record(
    file: ClientFile, op: Op, table: str, row_id: str, columns: Mapping[str, object]
) -> Delta:
    return file.database.write(encoded, write_alone, file, op, table, row_id, columns)


def amend(file: ClientFile, delta_id: str, columns: Mapping[str, object]) -> Delta:
    with file.database.transaction():
        refused = file.quarantined(delta_id).delta
        state = file.rows.one(file.key_of(refused)).state
        mine = (refused.hlc, refused.client_id)
        kept = {
            name: parse(value)
            for name, value in refused.columns
            if name in state.columns and state.columns[name][:2] == mine
        }
        file.take_back(refused)
        amended = Writer(file, is_group=False).write(
            refused.op, refused.table, refused.row_id, kept | dict(columns)
        )
        stamps = refused.hlc, amended.hlc
        file.conflicts.stamped_again([(file.key_of(refused), stamps)])
    return amended
