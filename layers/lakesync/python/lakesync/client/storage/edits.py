"""Edits, single or in one local transaction; the writing: `lakesync.client.storage.writing`."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any, Final, TypeVar

from lakesync.client.storage.editor import Editor
from lakesync.client.storage.failures import attempt
from lakesync.client.storage.kinds import own_answer, own_kinds
from lakesync.client.storage.writing import Writer, encoded, write_alone
from lakesync.core.values import parse
from lakesync.result import Err, Result

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from lakesync.client.storage.file import ClientFile
    from lakesync.client.storage.kinds import Kinds
    from lakesync.client.storage.reading import Answer
    from lakesync.core.delta import Delta, Op
    from lakesync.errors import LakeSyncError


T = TypeVar("T")
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

    def _kinds(self, names: list[str], sql: str, parameters: object) -> Kinds:
        return own_kinds(self._file.connection, names, sql, parameters)

    def _attempt(self, operation: Callable[[], Any]) -> Result[Any, LakeSyncError]:
        self._must_be_open()
        return attempt(operation) if self.failure is None else Err(self.failure)

    def _must_be_open(self) -> None:
        if not self.is_open or self._thread != threading.get_ident():
            raise RuntimeError("a transaction ends with its block, and stays on its thread")


@contextlib.contextmanager
def local_transaction(file: ClientFile) -> Iterator[Transaction]:
    """Make the edits of the block one local transaction; see `Client.transaction`.

    After an edit's ``Err`` all further edits give the same, and the block ends by raising it: so an
    ignored result cannot split a transaction.
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
    return file.database.write(encoded, write_alone, file, op, table, row_id, columns)


def amend(file: ClientFile, delta_id: str, columns: Mapping[str, object]) -> Delta:
    """Replace a quarantined edit by a new one in one transaction; see `Client.amend`."""
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
