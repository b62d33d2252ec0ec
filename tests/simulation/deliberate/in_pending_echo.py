"""Faults in what the client notes of its own writes until a page tells them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakesync.client import upload
from lakesync.client.storage import own_writes
from lakesync.client.storage.own_writes import PendingEcho
from tests.simulation.deliberate.registry import Replaced, deliberate
from tests.simulation.themes import EAGER, FORGOTTEN, PARTED, RULES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lakesync.client.storage.file import ClientFile
    from lakesync.client.storage.stored_rows import StoredRow
    from lakesync.core.clock import Stamp
    from lakesync.core.delta import Delta


@deliberate("what was written out of sight stays beside a row that was made anew", FORGOTTEN)
def unseen_writes_stay() -> list[Replaced]:
    return [(PendingEcho, "note", lambda *_: None), (PendingEcho, "on_page", lambda *_: {})]


@deliberate("what was written out of sight is let go of as a whole or not at all", PARTED)
def unseen_writes_stay_together() -> list[Replaced]:
    """A page shows the row, or passes a commit, and of the row it is yet to tell a later write."""
    on_page, hide = PendingEcho.on_page, PendingEcho.hide

    def later(self: PendingEcho, until: Stamp) -> list[tuple[int, str]]:
        of_rows = "SELECT table_id, row_id FROM _lakesync_pending_echo WHERE accepted > ?"
        rows: list[tuple[int, str]] = self.file.connection.execute(of_rows, (until,)).fetchall()
        return rows

    def on_page_together(
        self: PendingEcho, table_id: int, rows: Mapping[str, Sequence[Delta]], until: Stamp
    ) -> dict[str, set[Stamp]]:
        together = later(self, until)
        echoes = on_page(self, table_id, rows, until)
        return {row: writes for row, writes in echoes.items() if (table_id, row) not in together}

    def hide_together(self: PendingEcho, until: Stamp) -> None:
        passed = "WHERE table_id = ? AND row_id = ? AND accepted <= ?"
        self.file.connection.executemany(
            f"DELETE FROM _lakesync_pending_echo {passed}",  # noqa: S608 - constant
            [(*key, until) for key in later(self, until)],
        )
        hide(self, until)

    return [(PendingEcho, "on_page", on_page_together), (PendingEcho, "hide", hide_together)]


@deliberate("what is written before the first page is not noted", EAGER)
def first_writes_stay() -> list[Replaced]:
    real = own_writes.ruled_tables

    def ruled_tables(file: ClientFile) -> set[int]:
        return set() if file.position().is_new else real(file)

    return [(upload, "ruled_tables", ruled_tables)]


@deliberate("of a row that was in sight once, what is written is not noted", FORGOTTEN)
def writes_behind_a_deletion_stay() -> list[Replaced]:
    real = PendingEcho.note

    def note(
        self: PendingEcho,
        table_id: int,
        written: Mapping[str, Sequence[Delta]],
        stored: Mapping[str, StoredRow],
        accepted: Stamp,
    ) -> None:
        bases = {row_id: row.known for row_id, row in stored.items()}
        seen = {row_id for row_id, base in bases.items() if base.alive or base.columns}
        unseen = {row_id: deltas for row_id, deltas in written.items() if row_id not in seen}
        real(self, table_id, unseen, stored, accepted)

    return [(PendingEcho, "note", note)]


@deliberate("what its author may not see stays on the author's device", RULES)
def hidden_writes_stay() -> list[Replaced]:
    return [(PendingEcho, "hide", lambda *_: None)]
