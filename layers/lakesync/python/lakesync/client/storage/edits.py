"""Edits: the row, its merged state and the outbox delta, committed together or not at all.

The one path of the client that an app waits for. It costs one commit to disk; around that it is
kept to four statements, each prepared once.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lakesync.client.editor import Editor
from lakesync.client.storage.catalogue import checked_text
from lakesync.client.storage.failures import translated
from lakesync.client.storage.queries import BOOLEANS, boolean_names
from lakesync.client.storage.rows import NOT_STORED, SELECT_ROW, UPSERT_ROW
from lakesync.client.upload.outbox import ADD
from lakesync.core.delta import Op, checked_delta
from lakesync.core.forgetting import is_tombstone
from lakesync.core.merge import apply
from lakesync.core.values import canonical
from lakesync.errors import LakeSyncError, ValidationFailed
from lakesync.result import Err, Ok, Result
from lakesync.wire.records import encode_records
from lakesync.wire.row_state import decode_row_state, encode_row_state

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lakesync.client.storage.catalogue import Catalogue
    from lakesync.client.storage.database import Database
    from lakesync.client.storage.device_clock import DeviceClock
    from lakesync.client.storage.queries import Answer
    from lakesync.core.delta import Columns, Delta


class Transaction(Editor):
    """The edits of one ``with client.transaction() as tx``: all of them are committed, or none.

    It reads what it wrote. It belongs to the thread that opened it, and ends with its block.

    Raises:
        RuntimeError: it is used on another thread, or after its block.
    """

    def __init__(self, edits: Edits) -> None:
        self._edits = edits
        self._thread = threading.get_ident()
        self.is_open = True
        self.group: int | None = None
        """The stamp of its first edit, by which the outbox tells what belongs together."""
        self.failure: LakeSyncError | None = None
        """Why it cannot be committed any more."""

    def _edit(
        self, op: Op, table: str, row_id: str, columns: Mapping[str, object]
    ) -> Result[Delta, LakeSyncError]:
        result = self._attempt(lambda: self._edits.join(self, op, table, row_id, columns))
        if isinstance(result, Err):
            self.failure = result.error
        return result

    def _read(self, sql: str, parameters: object) -> Answer:
        self._must_be_open()
        return self._edits.database.read_own(sql, parameters)

    def _boolean_names(self) -> frozenset[str]:
        return boolean_names(self._read(BOOLEANS, ()))

    def _attempt(self, operation: Callable[[], Any]) -> Result[Any, LakeSyncError]:
        self._must_be_open()
        if self.failure is not None:
            return Err(self.failure)
        try:
            return Ok(operation())
        except LakeSyncError as error:
            return Err(error)
        except sqlite3.Error as exc:
            return Err(translated(exc))

    def _must_be_open(self) -> None:
        if not self.is_open or self._thread != threading.get_ident():
            raise RuntimeError("a transaction ends with its block, and stays on its thread")


class Edits:
    """Writes the edits of one client."""

    def __init__(
        self, database: Database, catalogue: Catalogue, clock: DeviceClock, client_id: str
    ) -> None:
        self.database = database
        self._catalogue = catalogue
        self._clock = clock
        self._client_id = client_id

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Let the edits of the block be one local transaction; see `Client.transaction`.

        An edit that gives an ``Err`` undoes the block: what comes after it gives the same, and the
        block ends by raising it. So a result that nobody looked at cannot cut a transaction.

        Raises:
            LakeSyncError: an edit's error, or it could not begin or be committed.
        """
        with self.database.transaction():
            transaction = Transaction(self)
            try:
                yield transaction
            finally:
                transaction.is_open = False
            if transaction.failure is not None:
                raise transaction.failure

    def record(self, op: Op, table: str, row_id: str, columns: Mapping[str, object]) -> Delta:
        """Commit one edit to disk."""
        encoded = _encoded(op, table, row_id, columns)
        database = self.database
        with database.lock:
            database.begin()
            try:
                delta = self._write(op, table, row_id, encoded, self._clock.now(), None)
            except BaseException as failure:
                database.undo(failure)
                raise
            database.commit()
        return delta

    def join(
        self,
        transaction: Transaction,
        op: Op,
        table: str,
        row_id: str,
        columns: Mapping[str, object],
    ) -> Delta:
        """Write one edit inside a transaction."""
        encoded = _encoded(op, table, row_id, columns)
        hlc = self._clock.now()
        transaction.group = transaction.group or hlc
        return self._write(op, table, row_id, encoded, hlc, transaction.group)

    def _write(
        self, op: Op, table: str, row_id: str, columns: Columns, hlc: int, group: int | None
    ) -> Delta:
        delta = checked_delta(op, table, row_id, self._client_id, hlc, columns)
        app = self._catalogue.table(table, [name for name, _ in columns])
        execute = self.database.writer.execute
        state, base, waiting = execute(SELECT_ROW, (app.id, row_id)).fetchone() or NOT_STORED
        after = apply(decode_row_state(state), delta)
        if base is None:  # the first edit that waits: what is stored so far does not
            base = state or b""
        mark = 0 if is_tombstone(after) else None
        execute(UPSERT_ROW, (app.id, row_id, encode_row_state(after), base, waiting + 1, mark))
        cells = app.cells(row_id, after)
        if app.kinds:
            self._catalogue.keep_kinds(app)
        if cells is None:
            execute(app.delete, (row_id,))
        else:
            execute(app.upsert, cells)
        execute(ADD, (delta.hlc, group, app.id, row_id, encode_records((delta,))))
        return delta


def _encoded(op: Op, table: object, row_id: object, columns: object) -> Columns:
    """Give the columns' canonical bytes; what typing cannot promise is checked here."""
    checked_text(table, "table")
    checked_text(row_id, "rowId")
    if not isinstance(columns, Mapping):
        raise ValidationFailed("columns must map names to values", field="columns")
    if op is Op.UPDATE and not columns:
        raise ValidationFailed("an update names at least one column", field="columns")
    if not all(isinstance(name, str) for name in columns):
        raise ValidationFailed("a column's name must be text", field="columns")
    encoded = []
    # In the order of a row state, so that the same delta can be made of one again.
    for name, value in sorted(columns.items()):
        try:
            encoded.append((name, canonical(value)))
        except ValidationFailed as error:
            error.field = f"columns.{name[:64]}"
            raise
    return tuple(encoded)
