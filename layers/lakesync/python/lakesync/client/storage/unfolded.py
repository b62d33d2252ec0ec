"""Edits that are only in the outbox: inserts of new rows, whose states are yet to be written.

The outbox already holds everything that the row's state would say of its insert, in the same
commit. Writing the state too would cost the edit as many pages again as the row itself. So the
states of hundreds of rows are written together, and before anything reads states.

Rules of this module
    1. A row that has an entry in the outbox and no state is one insert, which is all that is known
       of it: its state is that insert, and its base is empty.
    2. Every transaction begins with `Unfolded.fold`, and finds a state for every row. Only a single
       edit begins without, and folds unless it is another such insert.
    3. Entries up to the stamp ``folded`` have states for their rows. It limits how much of the
       outbox is searched, and advances once in `UNFOLDED_EDITS_MAX` edits.
    4. What is remembered here was left by this connection. It is forgotten after a rollback, and
       when another process wrote: then the outbox is read instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from lakesync.client.storage.rows import INSERT_EDITED
from lakesync.core.merge import fold
from lakesync.wire.records import decode_records

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator, Sequence

    from lakesync.client.storage.catalogue import Catalogue
    from lakesync.client.storage.edit_template import EditTemplate
    from lakesync.client.storage.rows import LocalKey
    from lakesync.client.storage.stored_state import States
    from lakesync.core.clock import Stamp
    from lakesync.core.delta import Delta
    from lakesync.core.values import CanonicalJson

    Waiting: TypeAlias = tuple[int, str, EditTemplate, Stamp, Sequence[CanonicalJson]]

UNFOLDED_EDITS_MAX: Final = 256
"""Edits that may wait for the states of their rows to be written: some milliseconds of work."""
_UNFOLDED: Final = (
    "SELECT table_id, row_id, run FROM _lakesync_outbox AS entry "
    "WHERE hlc > (SELECT folded FROM _lakesync_sync) AND NOT EXISTS (SELECT 1 FROM _lakesync_rows "
    "AS row WHERE row.table_id = entry.table_id AND row.row_id = entry.row_id)"
)
_HOW_FAR: Final = (
    "SELECT folded, (SELECT count(*) FROM _lakesync_outbox WHERE hlc > folded) FROM _lakesync_sync"
)
_MOVE: Final = (
    "UPDATE _lakesync_sync SET folded = coalesce((SELECT max(hlc) FROM _lakesync_outbox), 0) "
    "RETURNING folded"
)


def unfolded(connection: sqlite3.Connection) -> Iterator[tuple[LocalKey, Delta]]:
    """Yield the inserts whose rows have no state, as a connection sees a file now."""
    for table_id, row_id, run in connection.execute(_UNFOLDED):
        (delta,) = decode_records(run)
        yield (table_id, row_id), delta


class Unfolded:
    """The unfolded edits of one file. Used within the caller's transaction."""

    def __init__(
        self, connection: sqlite3.Connection, catalogue: Catalogue, states: States
    ) -> None:
        self._connection = connection
        self._catalogue = catalogue
        self._states = states
        self._waiting: list[Waiting] = []
        self._states_read: list[tuple[int, str, bytes]] = []
        """Of what this connection did not write, or does not remember."""
        self._is_known = False
        self._folded: Stamp = 0
        self._edits = 0
        """Since ``folded`` was moved."""

    def reload(self) -> None:
        """Forget what may be otherwise in the database."""
        self._is_known = False

    def may_take(self, hlc: Stamp) -> bool:
        """Return whether an insert with a stamp may be left unfolded."""
        if not self._is_known:
            self.fold()
        return hlc > self._folded

    def take(
        self,
        table_id: int,
        row_id: str,
        template: EditTemplate,
        hlc: Stamp,
        values: Sequence[CanonicalJson],
    ) -> None:
        """Leave an insert unfolded, which is in the outbox by now, as the only entry of its row."""
        self._waiting.append((table_id, row_id, template, hlc, values))
        self._edits += 1
        if self._edits >= UNFOLDED_EDITS_MAX:
            self.fold()

    def count(self) -> None:
        """Count an edit that was written, and left nothing unfolded."""
        self._edits += 1
        if self._edits >= UNFOLDED_EDITS_MAX:
            self.fold()

    def fold(self) -> None:
        """Write a state for every row that has none."""
        if not self._is_known:
            self._read()
        if self._waiting or self._states_read:
            states = [
                (table_id, row_id, template.state(hlc, values))
                for table_id, row_id, template, hlc, values in self._waiting
            ]
            # In the order of the table: many go to one page.
            states = sorted(states + self._states_read)
            self._connection.executemany(INSERT_EDITED, states)
            self._waiting.clear()
            self._states_read.clear()
        if self._edits >= UNFOLDED_EDITS_MAX:
            ((self._folded,),) = self._connection.execute(_MOVE).fetchall()
            self._edits = 0

    def _read(self) -> None:
        """Read out of the database what is unfolded."""
        table_of, encode = self._catalogue.by_id, self._states.encode
        self._waiting.clear()
        self._states_read = [
            (table_id, row_id, encode(table_of(table_id).places, fold((delta,))))
            for (table_id, row_id), delta in unfolded(self._connection)
        ]
        ((self._folded, self._edits),) = self._connection.execute(_HOW_FAR).fetchall()
        self._is_known = True
