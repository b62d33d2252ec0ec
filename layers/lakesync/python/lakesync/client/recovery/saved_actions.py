"""The actions of a damaged file that can still be read, for the new file's queue."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from lakesync.client.actions.entries import COLUMNS, ActionEntry, ActionStatus
from lakesync.errors import EditRefused

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lakesync.client.storage.file import ClientFile

_ALSO: Final = ("place", "after_hlc", "sent_ms", "due_ms", "ended_ms")
_NAMES: Final = f"{COLUMNS}, {', '.join(_ALSO)}"
_LOST: Final = (
    "the file was damaged, and edits that were made before it may be lost, so it was not sent: "
    "look at the rows, then retry the action"
)


@dataclass(slots=True)
class SavedActions:
    """Actions of a damaged file by their places."""

    rows: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    is_complete: bool = True
    unsure: set[int] = field(default_factory=set)
    """Places of actions of which the file may no longer know that they have ended."""

    @property
    def entries(self) -> tuple[ActionEntry, ...]:
        """The actions themselves, oldest first."""
        return tuple(entry_of(row) for _, row in sorted(self.rows.items()))

    def add(self, row: tuple[Any, ...]) -> None:
        """Add an action; raises if it is not what was queued."""
        entry_of(row).to_send("-")
        place, after_hlc, sent_ms, due_ms, ended_ms = row[-len(_ALSO) :]
        if not all(
            isinstance(n, int) for n in (place, after_hlc, sent_ms or 0, due_ms, ended_ms or 0)
        ):
            raise ValueError("a number is none")
        self.rows[place] = row

    def take(self, cells: Mapping[str, Any], *, was_reached: bool) -> None:
        """Add an action of a page, unless it is there."""
        if cells["place"] not in self.rows:
            self.add(tuple(cells[name] for name in _NAMES.split(", ")))
            if not was_reached:
                self.unsure.add(cells["place"])

    def fill(self, file: ClientFile, *, edits_complete: bool) -> None:
        """Put them into a new file's queue, within a transaction of it."""
        marks = ", ".join("?" * (_NAMES.count(",") + 1))
        for place, row in sorted(self.rows.items()):
            file.connection.execute(
                f"INSERT INTO _lakesync_actions ({_NAMES}) VALUES ({marks})",  # noqa: S608 - names
                row,
            )
            entry, after_hlc = entry_of(row), row[-4]
            waits = entry.status is ActionStatus.WAITING
            is_unsure = place in self.unsure and (waits or entry.status is ActionStatus.SENT)
            if is_unsure or (after_hlc and waits and not edits_complete):
                file.actions.end(entry, EditRefused(_LOST))


def entry_of(row: tuple[Any, ...]) -> ActionEntry:
    """Return the action that a row is."""
    return ActionEntry.stored(*row[: -len(_ALSO)])


def read_actions(connection: sqlite3.Connection) -> SavedActions:
    """Read actions from both ends, up to the damage."""
    saved = SavedActions()
    there = "SELECT 1 FROM sqlite_master WHERE name = '_lakesync_actions'"
    try:
        if not connection.execute(there).fetchall():
            return saved  # the file is of a release that had none
    except (sqlite3.Error, UnicodeError):
        saved.is_complete = False
        return saved
    if not _read(connection, "ASC", saved):
        saved.is_complete = False
        _read(connection, "DESC", saved)
    return saved


def _read(connection: sqlite3.Connection, order: str, saved: SavedActions) -> bool:
    complete = True
    sql = f"SELECT {_NAMES} FROM _lakesync_actions NOT INDEXED ORDER BY place {order}"  # noqa: S608 - names
    try:
        with closing(connection.execute(sql)) as rows:
            for row in rows:
                try:
                    saved.add(row)
                except Exception:  # noqa: BLE001 - whatever decoding raises, it is this one's damage
                    complete = False
    except (sqlite3.Error, UnicodeError):
        return False
    return complete
