"""The tables that a feed tells of: which they are, what they are like, when each is read whole."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lakesync.connectors.sql.capture.columns import captured_table
from lakesync.connectors.sql.capture.kept import Kept, keep, kept_in
from lakesync.connectors.sql.capture.tables import Tables
from lakesync.errors import AdapterRefused

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lakesync.connectors.sql.capture.columns import CapturedTable
    from lakesync.connectors.sql.capture.kept import Baseline
    from lakesync.connectors.sql.capture.pgoutput import Relation
    from lakesync.connectors.sql.capture.slot import Slot
    from lakesync.connectors.sql.catalogue import PostgresSource
    from lakesync.connectors.sql.configuration import PolledTable
    from lakesync.connectors.storage import Storage


class Captured:
    """The captured tables of one connector.

    Attributes:
        kept: how each is to be read, as it is kept.
        tables: which can be captured, as the source said last.
    """

    def __init__(
        self,
        source: PostgresSource,
        slot: Slot,
        settings: Mapping[str, PolledTable],
        storage: Storage,
    ) -> None:
        self._slot = slot
        self._storage = storage
        self.settings = settings
        self.kept = Kept()
        self.tables = Tables(source, slot, settings)

    def load(self) -> None:
        """Read what is kept."""
        self.kept = kept_in(self._storage)

    def save(self) -> None:
        """Keep it."""
        keep(self._storage, self.kept)

    def begin(self, cursor: Any, again: str, *, is_made: bool) -> None:
        """Keep whose slot it is that is about to be made, and have the tables published.

        Raises:
            AdapterRefused: the user may not publish them; it says what to run.
        """
        made = self.tables.publish(cursor, is_made=is_made)
        self.kept = Kept(self._slot.name, made or self.kept.made, 0, again)
        self.save()

    def mark_all(self, cursor: Any, us: int) -> None:
        """Have all tables read whole, as of a time."""
        for name in list(self.tables.looks):
            self._mark(cursor, name, us)
        self.save()

    def follow(self, cursor: Any, us: int) -> None:
        """Have tables read that are new, or others than they were; forget those that are not."""
        before = self.kept.all
        self.tables.look(cursor)
        unpublished = {name for name, look in self.tables.looks.items() if not look.is_published}
        self.tables.publish(cursor, is_made=True)
        marks = self.kept.tables
        for name in [name for name in marks if name not in self.tables.looks]:
            del marks[name]
        for name, look in list(self.tables.looks.items()):
            mark = marks.get(name)
            if mark is None or mark.table_id != look.table_id or name in unpublished:
                # Later than what was told of it before, and earlier than what will be.
                self.kept.floor_us = max(self.kept.floor_us, us + 1)
                self._mark(cursor, name, self.kept.floor_us)
        if self.kept.all != before:
            self.save()

    def altered(self) -> list[str]:
        """Give the tables that were altered, and of which no row changed since."""
        return [
            name
            for name, mark in self.kept.tables.items()
            if name in self.tables.looks
            and self.is_altered(mark, self.tables.types(name), mark.key)
        ]

    def read_altered_again(self, cursor: Any, us: int) -> int:
        """Have tables read again that were altered; nothing may be told but what comes later.

        Args:
            cursor: what is asked.
            us: the time of what was told last: all that was there when the tables were looked at.

        Returns:
            The time that is earlier than all that will be told.
        """
        altered = self.altered()
        for name in altered:
            self.kept.floor_us = us + 1
            self._mark(cursor, name, us + 1)
        if altered:
            self.save()
        return max(us, self.kept.floor_us)

    def is_altered(self, mark: Baseline, types: Mapping[str, str], key: Sequence[str]) -> bool:
        """Say whether what is told now is not what was read; note columns that went."""
        if mark.key == list(key) and types.items() <= mark.types.items():
            if len(types) < len(mark.types):
                mark.types = dict(types)
                self.save()
            return False
        return True

    def logged(self, cursor: Any) -> LoggedTables:
        """Give what follows the tables through one reading of the log."""
        return LoggedTables(self, cursor)

    def _mark(self, cursor: Any, name: str, us: int) -> None:
        try:
            plan = self.tables.plan(cursor, name)
        except AdapterRefused as error:
            self.tables.faults[name] = error.message
            del self.tables.looks[name]
            self.kept.tables.pop(name, None)
            return
        types = dict(zip(plan.columns, plan.types, strict=True))
        self.kept.mark(cursor, name, us, self.tables.looks[name].table_id, types, plan.key)


class LoggedTables:
    """What one reading of the log tells of the tables themselves."""

    def __init__(self, captured: Captured, cursor: Any) -> None:
        self._captured = captured
        self._cursor = cursor
        looks = captured.tables.looks
        self._names = {look.table_id: name for name, look in looks.items()}

    def table_of(self, relation: Relation, us: int) -> CapturedTable | None:
        """Give how a table's rows are told from now on; None if it is not captured.

        With a column that was not there, or another type, it is read again.
        """
        name = self._names.get(relation.table_id)
        if name is None:
            return None
        captured = self._captured
        key = captured.tables.looks[name].primary_key
        try:
            table = captured_table(self._cursor, relation, captured.settings[name], key)
        except AdapterRefused:
            # It lacks a column now, or did then. It is read again once it does not.
            del self._names[relation.table_id]
            captured.kept.tables.pop(name, None)
            captured.save()
            return None
        mark = captured.kept.tables[name]
        if captured.is_altered(mark, table.types, table.plan.key):
            captured.kept.mark(self._cursor, name, us, mark.table_id, table.types, table.plan.key)
            captured.save()
        return table

    def emptied(self, table: CapturedTable, us: int) -> None:
        """Have a table read again of which all rows went at once."""
        mark = self._captured.kept.tables.get(table.name)
        if mark is not None:
            self._captured.kept.mark(
                self._cursor, table.name, us, mark.table_id, mark.types, mark.key
            )
            self._captured.save()
