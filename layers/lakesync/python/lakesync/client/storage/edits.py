"""What an app does with its rows, through a client or one transaction of it: edits, and reading.

An edit's row, its merged state and the outbox delta are committed together or not at all. An app
waits for that: it costs one commit to disk, and around it four statements, each prepared once.
"""

from __future__ import annotations

import contextlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final

from lakesync.client.storage.catalogue import checked_name, checked_text
from lakesync.client.storage.database import boolean_names
from lakesync.client.storage.failures import attempt, query_result
from lakesync.client.storage.rows import UPSERT_ROW
from lakesync.client.upload.outbox import ADD
from lakesync.core.delta import Op, check_row_id, checked_delta
from lakesync.core.forgetting import is_tombstone
from lakesync.core.merge import apply, view
from lakesync.core.values import canonical, parse
from lakesync.errors import LakeSyncError, ValidationFailed
from lakesync.result import Err, Result
from lakesync.wire.records import encode_records
from lakesync.wire.row_state import decode_row_state, encode_row_state

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from lakesync.client.storage.database import Answer
    from lakesync.client.storage.file import ClientFile
    from lakesync.core.clock import Stamp
    from lakesync.core.delta import Columns, Delta


_NOTHING: Final[Mapping[str, object]] = {}
_STATE: Final = (
    "SELECT state FROM _lakesync_rows JOIN _lakesync_tables ON id = table_id "
    "WHERE name = ? AND row_id = ?"
)


class Editor(ABC):
    """What a client and its transaction both offer: reads, and edits; an ``Err`` wrote nothing."""

    def insert(
        self, table: str, row_id: str, columns: Mapping[str, object] = _NOTHING
    ) -> Result[Delta, LakeSyncError]:
        """Make a row exist, with these columns; one that exists keeps its other columns."""
        return self._edit(Op.INSERT, table, row_id, columns)

    def update(
        self, table: str, row_id: str, columns: Mapping[str, object]
    ) -> Result[Delta, LakeSyncError]:
        """Write columns of a row, at least one, whether or not this client has seen it.

        If the row exists nowhere, these columns make it exist.
        """
        return self._edit(Op.UPDATE, table, row_id, columns)

    def delete(self, table: str, row_id: str) -> Result[Delta, LakeSyncError]:
        """Delete a row, whether or not this client has seen it; as `update`."""
        return self._edit(Op.DELETE, table, row_id, _NOTHING)

    def get(self, table: str, row_id: str) -> Result[dict[str, Any] | None, LakeSyncError]:
        """Give a row's columns as they were written (true is true, a list a list), or None."""

        def state() -> dict[str, Any] | None:
            key = checked_name(table, "table"), check_row_id(checked_text(row_id, "rowId"))
            _, rows = self._read(_STATE, key)
            columns = view(decode_row_state(rows[0][0])) if rows else None  # type: ignore[arg-type]
            return columns and {name: parse(raw) for name, raw in columns.items()}

        return self._attempt(state)

    def query(
        self, sql: str, parameters: Sequence[object] | Mapping[str, object] = ()
    ) -> Result[list[dict[str, Any]], LakeSyncError]:
        """Run one statement that only reads; each row is a dictionary.

        Every table has its row ids in ``_row_id``. A second column of one name is ``name:1``, as
        in SQLite's own subqueries. Booleans are stored as 1 and 0, and read as True and False in
        an answer's column that is named as one that has held nothing else. Objects and lists read
        as JSON text. ``VALIDATION_ERROR`` if SQLite refuses it, or it would do anything but read.
        """

        def rows() -> list[dict[str, Any]]:
            names, answer = self._read(sql, parameters)
            distinct = _distinct(names)
            # As dict(zip(...)) for each row, a quarter faster.
            given: list[dict[str, Any]] = list(map(dict, map(zip, repeat(distinct), answer)))
            booleans = self._boolean_names()
            for name, shown in zip(names, distinct, strict=True):
                for row in given if name.lower() in booleans else ():
                    value = row[shown]
                    if value.__class__ is int and 0 <= value <= 1:
                        row[shown] = value == 1
            return given

        return query_result(rows)

    @abstractmethod
    def _edit(
        self, op: Op, table: str, row_id: str, columns: Mapping[str, object]
    ) -> Result[Delta, LakeSyncError]: ...

    @abstractmethod
    def _read(self, sql: str, parameters: object) -> Answer: ...

    @abstractmethod
    def _boolean_names(self) -> frozenset[str]: ...

    @abstractmethod
    def _attempt(self, operation: Callable[[], Any]) -> Result[Any, LakeSyncError]: ...


class Transaction(Editor):
    """The edits of one ``with client.transaction() as tx``: all of them are committed, or none.

    It reads what it wrote. A ``RuntimeError`` on another thread, and after its block.
    """

    def __init__(self, file: ClientFile) -> None:
        self._file = file
        self._thread = threading.get_ident()
        self.is_open = True
        self.failure: LakeSyncError | None = None
        """Why it cannot be committed any more."""
        # The stamp of its first edit, by which the outbox tells what belongs together.
        self._group: Stamp | None = None

    def _edit(
        self, op: Op, table: str, row_id: str, columns: Mapping[str, object]
    ) -> Result[Delta, LakeSyncError]:
        def join() -> Delta:
            encoded = encoded_columns(op, table, row_id, columns)
            hlc = self._file.clock.now()
            self._group = self._group or hlc
            return write(self._file, op, table, row_id, encoded, hlc, self._group)

        result = self._attempt(join)
        self.failure = result.error if isinstance(result, Err) else None
        return result

    def _read(self, sql: str, parameters: object) -> Answer:
        self._must_be_open()
        return self._file.database.read_own(sql, parameters)

    def _boolean_names(self) -> frozenset[str]:
        return boolean_names(self._file.connection)

    def _attempt(self, operation: Callable[[], Any]) -> Result[Any, LakeSyncError]:
        self._must_be_open()
        return attempt(operation) if self.failure is None else Err(self.failure)

    def _must_be_open(self) -> None:
        if not self.is_open or self._thread != threading.get_ident():
            raise RuntimeError("a transaction ends with its block, and stays on its thread")


@contextlib.contextmanager
def local_transaction(file: ClientFile) -> Iterator[Transaction]:
    """Let the edits of the block be one local transaction; see `Client.transaction`.

    After an edit's ``Err`` all others give the same, and the block ends by raising it: so a result
    that nobody looked at cannot cut a transaction.
    """
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
    """Commit one edit to disk."""
    encoded = encoded_columns(op, table, row_id, columns)
    with file.database.transaction():
        return write(file, op, table, row_id, encoded, file.clock.now())


def write(
    file: ClientFile,
    op: Op,
    table: str,
    row_id: str,
    columns: Columns,
    hlc: Stamp,
    group: Stamp | None = None,
) -> Delta:
    """Write one edit inside a transaction of the file."""
    delta = checked_delta(op, table, row_id, file.client_id, hlc, columns)
    app = file.catalogue.table(table, [name for name, _ in columns])
    execute = file.connection.execute
    state, base, waiting = file.rows.one((app.id, row_id))
    after = apply(decode_row_state(state), delta)
    if base is None:  # the first edit that waits: what is stored so far does not
        base = state or b""
    mark = 0 if is_tombstone(after) else None
    execute(UPSERT_ROW, (app.id, row_id, encode_row_state(after), base, waiting + 1, mark))
    cells = app.cells(row_id, after)
    if app.kinds:
        file.catalogue.keep_kinds(app)
    if cells is None:
        execute(app.delete, (row_id,))
    else:
        execute(app.upsert, cells)
    execute(ADD, (delta.hlc, group, app.id, row_id, encode_records((delta,))))
    return delta


def encoded_columns(op: Op, table: object, row_id: object, columns: object) -> Columns:
    """Give the columns' canonical bytes; what typing cannot promise is checked here."""
    checked_text(table, "table")
    checked_text(row_id, "rowId")
    if not isinstance(columns, Mapping) or not all(isinstance(name, str) for name in columns):
        raise ValidationFailed("columns must map names to values", field="columns")
    if op is Op.UPDATE and not columns:
        raise ValidationFailed("an update names at least one column", field="columns")
    encoded = []
    # In the order of a row state, so that the same delta can be made of one again.
    for name, value in sorted(columns.items()):
        try:
            encoded.append((name, canonical(value)))
        except ValidationFailed as error:
            error.field = f"columns.{name[:64]}"
            raise
    return tuple(encoded)


def _distinct(names: list[str]) -> list[str]:
    """Give each column a name of its own: the second ``a`` is ``a:1``."""
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
