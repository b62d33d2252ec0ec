"""The captured tables of a feed: their definitions, and when each is read whole."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from lakesync.connectors.sql.capture.columns import captured_table
from lakesync.connectors.sql.capture.kept import Kept, keep, kept_in
from lakesync.errors import AdapterRefused

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lakesync.connectors.sql.capture.columns import CapturedTable
    from lakesync.connectors.sql.capture.kept import Baseline
    from lakesync.connectors.sql.capture.pgoutput import Relation
    from lakesync.connectors.sql.configuration import PolledTable
    from lakesync.connectors.sql.plan import Plan
    from lakesync.connectors.storage import Storage


class CapturableLook(Protocol):
    """A table at the source."""

    @property
    def table_id(self) -> int:
        """The source's number for the table; 0 if it has none."""
        ...

    @property
    def primary_key(self) -> Sequence[str]:
        """The key's columns, in the key's order."""
        ...

    @property
    def is_published(self) -> bool:
        """Whether the log contains its changes."""
        ...

    @property
    def parts(self) -> str:
        """Which partitions it has, and what is stored in each; empty if it has none."""
        ...


class CapturableTables(Protocol):
    """The configured tables, as they are at the source."""

    faults: dict[str, str]
    """What is wrong with those that cannot be captured, and what to do."""

    @property
    def looks(self) -> dict[str, Any]:
        """The others, each with its `CapturableLook`."""
        ...

    def look(self, cursor: Any) -> None:
        """Query the state of all tables."""
        ...

    def publish(self, cursor: Any, *, is_made: bool) -> bool:
        """Have the log contain their changes; return whether something was created for that."""
        ...

    def plan(self, cursor: Any, name: str) -> Plan:
        """Return how a table is read, as it is now."""
        ...

    def types(self, name: str) -> dict[str, str]:
        """Return `Plan.altered_by` of the configured columns that the table has."""
        ...

    def xid(self, cursor: Any) -> str:
        """Return what must have ended before a table is read: all that the feed has returned."""
        ...


class Captured:
    """The captured tables of one connector.

    Attributes:
        kept: the stored state of each table.
        tables: those that can be captured, as the source last reported.
    """

    def __init__(
        self,
        slot: str,
        tables: CapturableTables,
        settings: Mapping[str, PolledTable],
        storage: Storage,
    ) -> None:
        self._slot = slot
        self._storage = storage
        self.settings = settings
        self.kept = Kept()
        self.tables = tables

    def load(self) -> None:
        """Read the stored state."""
        self.kept = kept_in(self._storage)

    def save(self) -> None:
        """Store the state."""
        keep(self._storage, self.kept)

    def begin(self, cursor: Any, again: str, *, is_made: bool) -> None:
        """Store the name of the slot that is about to be created, and publish the tables.

        Raises:
            AdapterRefused: the user may not publish them; the message says what to run.
        """
        made = self.tables.publish(cursor, is_made=is_made)
        self.kept = Kept(self._slot, made or self.kept.made, 0, again)
        self.save()

    def mark_all(self, cursor: Any, us: int) -> None:
        """Have all tables read whole, as of a time."""
        for name in list(self.tables.looks):
            self.mark(cursor, name, us)
        self.save()

    def follow(self, cursor: Any, us: int) -> None:
        """Schedule new and replaced tables to be read; forget those that no longer exist."""
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
                # Later than its changes that were returned, and earlier than all changes to come.
                self.kept.floor_us = max(self.kept.floor_us, us + 1)
                self.mark(cursor, name, self.kept.floor_us)
        if self.kept.all != before:
            self.save()

    def altered(self) -> list[str]:
        """Return the tables that were altered and of which no row has changed since."""
        return [
            name
            for name, mark in self.kept.tables.items()
            if name in self.tables.looks
            and (
                mark.parts != self.tables.looks[name].parts
                or self.is_altered(mark, self.tables.types(name), mark.key)
            )
        ]

    def read_altered_again(self, cursor: Any, us: int) -> int:
        """Schedule altered tables to be read again; all changes returned after this must be later.

        Args:
            cursor: the source's cursor.
            us: the time of the last change that was returned; it covers everything that was visible
                when the tables were inspected.

        Returns:
            A time that is earlier than all changes to come.
        """
        altered = self.altered()
        for name in altered:
            self.kept.floor_us = us + 1
            self.mark(cursor, name, us + 1)
        if altered:
            self.save()
        return max(us, self.kept.floor_us)

    def read_again(self, cursor: Any, name: str, us: int) -> None:
        """Schedule a table to be read again, as of a time."""
        mark = self.kept.tables.get(name)
        if mark is not None:
            xid = self.tables.xid(cursor)
            self.kept.mark(name, us, xid, mark.table_id, mark.types, mark.key, mark.parts)
            self.save()

    def is_altered(self, mark: Baseline, types: Mapping[str, str], key: Sequence[str]) -> bool:
        """Return whether the columns differ from those that were read; record dropped ones."""
        if mark.key == list(key) and types.items() <= mark.types.items():
            if len(types) < len(mark.types):
                mark.types = dict(types)
                self.save()
            return False
        return True

    def logged(self, cursor: Any) -> LoggedTables:
        """Return the tables' state for one reading of the log."""
        return LoggedTables(self, cursor)

    def mark(self, cursor: Any, name: str, us: int) -> None:
        """Schedule a table to be read whole, as of a time; not stored yet."""
        try:
            plan = self.tables.plan(cursor, name)
        except AdapterRefused as error:
            self.tables.faults[name] = error.message
            del self.tables.looks[name]
            self.kept.tables.pop(name, None)
            return
        types = plan.altered_by
        xid, look = self.tables.xid(cursor), self.tables.looks[name]
        self.kept.mark(name, us, xid, look.table_id, types, plan.key, look.parts)


class LoggedTables:
    """The tables' state in one reading of the log."""

    def __init__(self, captured: Captured, cursor: Any) -> None:
        self._captured = captured
        self._cursor = cursor
        looks = captured.tables.looks
        self._names = {look.table_id: name for name, look in looks.items()}

    def table_of(self, relation: Relation, us: int) -> CapturedTable | None:
        """Return how a table's rows are decoded from now on; None if it is not captured.

        A new column, or another type, schedules the table to be read again.
        """
        name = self._names.get(relation.table_id)
        if name is None:
            return None
        captured = self._captured
        key = captured.tables.looks[name].primary_key
        try:
            table = captured_table(self._cursor, relation, captured.settings[name], key)
        except AdapterRefused:
            # A configured column is missing, in the table or in the log: read once it exists.
            del self._names[relation.table_id]
            captured.kept.tables.pop(name, None)
            captured.save()
            return None
        mark = captured.kept.tables[name]
        if captured.is_altered(mark, table.types, table.plan.key):
            xid = captured.tables.xid(self._cursor)
            key, types = table.plan.key, table.types
            captured.kept.mark(name, us, xid, mark.table_id, types, key, mark.parts)
            captured.save()
        return table

    def emptied(self, name: str, us: int) -> None:
        """Schedule a truncated table to be read again."""
        self._captured.read_again(self._cursor, name, us)
