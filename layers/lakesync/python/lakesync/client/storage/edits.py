"""Edits, each by itself or several in one local transaction.

An edit's row, its merged state and the outbox delta are committed together or not at all. An app
waits for that: it costs one commit to disk, and around it four statements, each prepared once.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lakesync.client.storage.catalogue import checked_text
from lakesync.client.storage.editor import Editor
from lakesync.client.storage.failures import attempt
from lakesync.client.storage.reading import boolean_names
from lakesync.client.storage.rows import UPSERT_ROW
from lakesync.client.upload.outbox import ADD
from lakesync.core.delta import Op, checked_delta
from lakesync.core.forgetting import is_tombstone
from lakesync.core.merge import apply
from lakesync.core.values import canonical
from lakesync.errors import LakeSyncError, ValidationFailed
from lakesync.result import Err, Result
from lakesync.wire.records import encode_records
from lakesync.wire.row_state import decode_row_state, encode_row_state

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lakesync.client.storage.file import ClientFile
    from lakesync.client.storage.reading import Answer
    from lakesync.core.clock import Stamp
    from lakesync.core.delta import Columns, Delta


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
    file.catalogue.note_change(app)
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
