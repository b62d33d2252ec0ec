"""Faults in what the client notes of its own writes until a page tells them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakesync.client.download import pending_echo
from lakesync.client.download.pending_echo import PendingEcho
from lakesync.client.download.position import position_of
from lakesync.client.storage.rows import base_state
from tests.simulation.deliberate.registry import Replaced, deliberate
from tests.simulation.themes import EAGER, FORGOTTEN

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Mapping, Sequence

    from lakesync.core.clock import Stamp
    from lakesync.core.delta import Delta


@deliberate("what was written out of sight stays beside a row that was made anew", FORGOTTEN)
def unseen_writes_stay() -> list[Replaced]:
    return [(PendingEcho, "note", lambda *_: None), (PendingEcho, "on_page", lambda *_: {})]


@deliberate(
    "what was written out of sight is let go of as a whole or not at all",
    FORGOTTEN | {"page_deltas": 1, "together": True},
)
def unseen_writes_stay_together() -> list[Replaced]:
    real = PendingEcho.on_page

    def told(
        self: PendingEcho, table_id: int, rows: Mapping[str, Sequence[Delta]], until: Stamp
    ) -> dict[str, set[Stamp]]:
        later = self._connection.execute(
            "SELECT row_id FROM _lakesync_pending_echo WHERE table_id = ? AND accepted > ?",
            (table_id, until),
        ).fetchall()
        found = real(self, table_id, rows, until)
        return {row_id: writes for row_id, writes in found.items() if (row_id,) not in later}

    return [(PendingEcho, "on_page", told)]


@deliberate("what is written before the first page is not noted", EAGER)
def first_writes_stay() -> list[Replaced]:
    real = pending_echo.ruled_tables

    def ruled_tables(connection: sqlite3.Connection) -> list[int]:
        return [] if position_of(connection).is_new else real(connection)

    return [(pending_echo, "ruled_tables", ruled_tables)]


@deliberate("of a row that was in sight once, what is written is not noted", FORGOTTEN)
def writes_behind_a_deletion_stay() -> list[Replaced]:
    real = PendingEcho._note_rows

    def note_rows(
        self: PendingEcho, table_id: int, written: Mapping[str, list[Delta]], accepted: Stamp
    ) -> None:
        held = self._rows.load(table_id, list(written))
        bases = {row_id: base_state(row) for row_id, row in held.items()}
        seen = {row_id for row_id, base in bases.items() if base.alive or base.columns}
        unseen = {row_id: deltas for row_id, deltas in written.items() if row_id not in seen}
        real(self, table_id, unseen, accepted)

    return [(PendingEcho, "_note_rows", note_rows)]
