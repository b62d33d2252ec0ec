"""Edits: the row, its merged state and the outbox delta, committed together or not at all.

The one path of the client that an app waits for. It costs one commit to disk; around that it is
kept to four statements, each prepared once.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from lakesync.client.storage.failures import translated
from lakesync.client.storage.rows import NOT_HELD, SELECT_ROW, UPSERT_ROW
from lakesync.client.upload.outbox import ADD
from lakesync.core.delta import Op, checked_delta
from lakesync.core.merge import apply
from lakesync.core.values import canonical
from lakesync.errors import LakeSyncError, ValidationFailed
from lakesync.wire.records import encode_records
from lakesync.wire.row_state import decode_row_state, encode_row_state

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lakesync.client.storage.catalogue import Catalogue
    from lakesync.client.storage.database import Database
    from lakesync.client.storage.device_clock import DeviceClock
    from lakesync.core.delta import Columns, Delta

_NO_EDIT_YET: Final = 0


class Edits:
    """Writes the edits of one client."""

    def __init__(
        self, database: Database, catalogue: Catalogue, clock: DeviceClock, client_id: str
    ) -> None:
        self._database = database
        self._catalogue = catalogue
        self._clock = clock
        self._client_id = client_id
        self._txn: int | None = None
        self._failure: LakeSyncError | None = None

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Let the edits of the block be one local transaction: all of them, or none.

        An edit that gives an ``Err`` undoes the block: the edits after it give the same, and the
        block ends by raising it. So a result that nobody looked at cannot cut a transaction.

        Raises:
            LakeSyncError: an edit's error.
            RuntimeError: the thread is in a transaction already.
        """
        database = self._database
        with database.lock:
            if self._txn is not None:
                raise RuntimeError("transactions do not nest; end the first one")
            with _translating():
                database.begin()
            self._txn = _NO_EDIT_YET
            try:
                yield
                self._check()
            except BaseException:
                database.rollback()
                raise
            finally:
                self._txn = self._failure = None
            with _translating():
                database.commit()

    def record(self, op: Op, table: str, row_id: str, columns: Mapping[str, object]) -> Delta:
        """Commit one edit to disk, or join the caller's transaction.

        Raises:
            ValidationFailed: a name, id or value is malformed; nothing was written.
            DeltaTooLarge: the edit is over the limits of one delta; nothing was written.
        """
        database = self._database
        with database.lock:
            if self._txn is not None:
                return self._join(op, table, row_id, columns)
            encoded = _encoded(op, table, row_id, columns)
            database.begin()
            try:
                delta = self._write(op, table, row_id, encoded)
            except BaseException:
                database.rollback()
                raise
            database.commit()
            return delta

    def _join(self, op: Op, table: str, row_id: str, columns: Mapping[str, object]) -> Delta:
        self._check()
        try:
            return self._write(op, table, row_id, _encoded(op, table, row_id, columns))
        except LakeSyncError as error:
            self._failure = error
            raise
        except sqlite3.OperationalError as exc:
            # SQLite may have rolled back by itself; what follows must not be committed alone.
            self._failure = translated(exc)
            raise self._failure from exc

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _write(self, op: Op, table: str, row_id: str, columns: Columns) -> Delta:
        delta = checked_delta(op, table, row_id, self._client_id, self._clock.now(), columns)
        app = self._catalogue.table(table, [name for name, _ in columns])
        execute = self._database.writer.execute
        state, base, waiting = execute(SELECT_ROW, (app.id, row_id)).fetchone() or NOT_HELD
        after = apply(decode_row_state(state), delta)
        if base is None:  # the first edit that waits: what is held so far does not
            base = state or b""
        execute(UPSERT_ROW, (app.id, row_id, encode_row_state(after), base, waiting + 1))
        cells = app.cells(row_id, after)
        if cells is None:
            execute(app.delete, (row_id,))
        else:
            execute(app.upsert, cells)
        if self._txn == _NO_EDIT_YET:
            self._txn = delta.hlc
        execute(ADD, (delta.hlc, self._txn, app.id, row_id, encode_records((delta,))))
        return delta


@contextlib.contextmanager
def _translating() -> Iterator[None]:
    try:
        yield
    except sqlite3.OperationalError as exc:
        raise translated(exc) from exc


def _encoded(op: Op, table: object, row_id: object, columns: object) -> Columns:
    """Give the columns' canonical bytes; what typing cannot promise is checked here.

    Raises:
        ValidationFailed: something is not of its type; the message says what to pass.
    """
    if not isinstance(table, str):
        raise ValidationFailed("table must be text", field="table")
    if not isinstance(row_id, str):
        raise ValidationFailed("row_id must be text; write numbers as text", field="rowId")
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
