"""`DatabaseAdapter` and `Materialisable` on Iceberg tables, in any catalogue.

Each table is a state table and a changes table, laid out like those of a stack's lake, so the lake
itself can be read in the same way. Intended for tables of some hundred thousand rows: changing a
row rewrites its file.

Rules of this module
    1. A write puts its files first, then its history, and last the commit of the state table, which
       names the history. Only one writer can make that commit, and until then nothing is visible.
    2. Of two commits from one snapshot the catalogue refuses one. What that one wrote is not part
       of the table.
    3. Tables of a stack's lake are read, and never written.

Laws P1-P3, P14: ``docs/spec/databases.md``.
"""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, NamedTuple

from lakesync.adapters.batches import check_refused
from lakesync.adapters.database import old_until
from lakesync.adapters.headed_database import Head, HeadedDatabase, HeadedTables, forgetting
from lakesync.errors import AdapterRefused
from lakesync.materialise.database.changes_table import history_rows
from lakesync.materialise.database.pair import (
    CHANGES,
    DEFINITION,
    FORGOTTEN,
    REFUSED_ROWS,
    commit,
    loaded,
    made,
    table_names,
)
from lakesync.materialise.database.place import asking
from lakesync.materialise.database.plain_tables import PlainTable
from lakesync.materialise.database.state_table import (
    Leaves,
    Remembered,
    StateFiles,
    follow_definition,
)
from lakesync.materialise.iceberg_table import StagedTransaction
from lakesync.materialise.lake_schema import COMMIT

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyiceberg.table import Transaction

    from lakesync.adapters.database import PlacedDelta
    from lakesync.adapters.sql.table_definition import Definition
    from lakesync.core.clock import Stamp
    from lakesync.core.merge import RowState
    from lakesync.core.schema import TableSchema
    from lakesync.materialise.database.pair import Pair
    from lakesync.materialise.database.place import LakePlace
    from lakesync.materialise.lake_schema import LakeColumn


class IcebergDatabase(HeadedDatabase):
    """One gateway's deltas and rows in one catalogue. Not thread-safe.

    Args:
        place: the catalogue, and the place in it.
        gateway: whose.
        history_ms: the greatest age of history that is kept; None keeps all.
    """

    def __init__(self, place: LakePlace, gateway: str, *, history_ms: int | None = None) -> None:
        super().__init__(IcebergTables(place, gateway, history_ms))
        self._place = place

    def snapshots_of(self, name: str) -> PlainTable:
        """Return a table that others write; `lakesync.adapters.snapshots.HasSnapshots`."""
        return PlainTable(self._place, name)


class IcebergTables(HeadedTables):
    """The tables of one gateway, or of one of its flows.

    Args:
        place: where they are.
        keeper: whose.
        history_ms: how old history may be that is kept; None keeps all.
    """

    def __init__(self, place: LakePlace, keeper: str, history_ms: int | None) -> None:
        super().__init__()
        self._place = place
        self._keeper = keeper
        self._history_ms = history_ms
        self._schemas: dict[str, TableSchema | None] | None = None
        """Kept until something is written: every table asks for it."""

    def opened(self, table: str) -> tuple[LakeTable, LakeTable]:
        """Return the heads and the files of a table, whether it exists or not."""
        one = LakeTable(self._place, self._keeper, table, self._history_ms, self._look_again)
        return one, one

    def names(self) -> list[str]:
        """Return the names of the existing tables."""
        with asking():
            return table_names(self._place, self._keeper)

    def begin(self, table: str) -> None:
        """Make a table that does not exist yet. Idempotent."""
        with asking():
            made(self._place, self._keeper, table)
        self._look_again()

    def schemas(self) -> dict[str, TableSchema | None]:
        """Return the existing tables, with their newest schemas."""
        if self._schemas is None:
            self._schemas = super().schemas()
        return self._schemas

    def forget(self) -> None:
        """Forget what was read."""
        super().forget()
        self._look_again()

    def _look_again(self) -> None:
        self._schemas = None


# --- one table ------------------------------------------------------------------------------------


_NOT_LOOKED_AT: Final = "a table is looked at before it is read or written"


class _Pending(NamedTuple):
    """A write whose files exist already."""

    transaction: Transaction
    columns: tuple[LakeColumn, ...]
    definition: Definition
    leaves: Leaves
    deltas: Sequence[PlacedDelta]


class LakeTable:
    """One table; `lakesync.adapters.headed_database.TableHeads` and `TableFiles`.

    Args:
        place: where it is.
        keeper: whose.
        table: its name on the wire.
        history_ms: how old history may be that is kept; None keeps all.
        changed: called when it is another than it was.
    """

    def __init__(
        self,
        place: LakePlace,
        keeper: str,
        table: str,
        history_ms: int | None,
        changed: Callable[[], None],
    ) -> None:
        self._place = place
        self._keeper = keeper
        self._table = table
        self._history_ms = history_ms
        self._changed = changed
        self._remembered = Remembered()
        self._pair: Pair | None = None
        self._files: tuple[str, StateFiles] | None = None
        self._pending: list[_Pending] = []

    def newest(self) -> Head:
        """Return the newest head."""
        with asking():
            self._pair = loaded(self._place, self._keeper, self._table)
            if self._pair is None:
                return Head()
            head = self._pair.head(self._table)
            history = self._pair.history
            is_lost = history is not None and history.is_lost
            return forgetting(head, head.mark) if is_lost else head

    def states(self, head: Head, row_ids: Sequence[str]) -> dict[str, RowState]:
        """Return the states of rows; missing rows are left out."""
        if not head.version:
            return {}
        with asking():
            return self._state_files().states(row_ids)

    def states_after(self, head: Head, row_id: str, count: int) -> dict[str, RowState]:
        """Return the states of a table's rows behind a row id, in the order of its bytes."""
        if not head.version:
            return {}
        with asking():
            return self._state_files().states_after(row_id, count)

    def commits(self, head: Head, after: Stamp) -> list[tuple[Stamp, bytes]]:
        """Return the next commits behind a stamp with their records, none at the end."""
        with asking():
            history = self._pair.history if self._pair is not None else None
            if history is None:
                return []
            return history.commits(self._table, max(after, head.forgotten), head.mark)

    def count(self, head: Head) -> int:
        """Count the rows, including those that are hidden from readers."""
        with asking():
            return self._state_files().count() if head.version else 0

    def written(
        self,
        head: Head,
        definition: Definition,
        deltas: Sequence[PlacedDelta],
        states: Mapping[str, RowState | None],
        *,
        anew: bool = False,
    ) -> Head:
        """Put the files of the next head; see `lakesync.adapters.headed_database.TableFiles`."""
        with asking():
            self._pair = self._pair or made(self._place, self._keeper, self._table)
            if self._pair.keeper != self._keeper:
                raise AdapterRefused(
                    f"{self._table} is a table of a stack's lake, which its own jobs write: name "
                    "another prefix in the URL"
                )
            transaction = StagedTransaction(self._pair.state)
            columns = follow_definition(transaction, definition)
            files = self._state_files()
            now = datetime.now(UTC).replace(microsecond=0)
            leaves = Leaves(self._pair.state, transaction.table_metadata, files, definition,
                            columns, head.mark, now)  # fmt: skip
            leaves.write(states, anew=anew)
        refused = {one: why for one, why in head.refused.items() if one not in states}
        if anew:
            refused = {}
        refused |= leaves.refused
        check_refused(self._table, refused.values())
        self._pending = [_Pending(transaction, columns, definition, leaves, deltas)]
        forgotten = max(head.forgotten, self._old(head) if deltas else 0)
        text = definition.to_json()
        return replace(head, version=1, refused=refused, definition=text, forgotten=forgotten)

    def follow(self, head: Head, before: Head) -> None:
        """Put the next head; see `lakesync.adapters.headed_database.TableHeads`."""
        del before  # the transactions begin at it
        pending = self._pending.pop()
        self._changed()
        with asking():
            named = self._history_follows(pending, head)
            transaction, leaves = pending.transaction, pending.leaves
            if transaction.table_metadata.properties.get(DEFINITION) != head.definition:
                transaction.set_properties({DEFINITION: head.definition})
            said = {
                COMMIT: str(head.mark),
                CHANGES: str(named),
                FORGOTTEN: str(head.forgotten),
                REFUSED_ROWS: json.dumps(dict(head.refused)),
            }
            commit(self._there().state, transaction, leaves.made, leaves.replaced, said)

    def _history_follows(self, pending: _Pending, head: Head) -> int:
        """Put the history of a write; returns the snapshot that names it, 0 for none."""
        pair = self._there()
        if pair.changes is None:
            pair = self._pair = made(self._place, self._keeper, self._table)
        changes, history = pair.changes, pair.history
        if changes is None or history is None:
            raise LookupError(_NOT_LOOKED_AT)
        transaction = StagedTransaction(changes)
        columns = follow_definition(transaction, pending.definition, pending.columns)
        rows = list(history_rows(pending.deltas, columns, datetime.now(UTC).replace(microsecond=0)))
        stray, put_back = history.unnamed()
        added, gone = history.followed(transaction.table_metadata, rows, head.forgotten)
        if not (added or gone or stray or put_back):
            return pair.named or 0
        back = [one for one in put_back if one not in gone]
        going = [*stray, *(one for one in gone if one not in put_back)]
        said = {COMMIT: str(head.mark)}
        return commit(changes, transaction, [*added, *back], going, said)

    def _old(self, head: Head) -> Stamp:
        """Return the commit up to which the history before a write is too old to be kept."""
        until = old_until(head.mark, self._history_ms)
        with asking():
            history = self._there().history
            return history.last_until(until) if history is not None and until else 0

    def _there(self) -> Pair:
        if self._pair is None:
            raise LookupError(_NOT_LOOKED_AT)
        return self._pair

    def _state_files(self) -> StateFiles:
        state = self._there().state
        if self._files is None or self._files[0] != state.metadata_location:
            self._files = (state.metadata_location, StateFiles(state, self._remembered))
        return self._files[1]
