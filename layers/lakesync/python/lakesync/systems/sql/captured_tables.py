"""The captured tables of a feed: their state, their definitions, and when each is read whole.

Capture's state in the connector's storage: the slot's name, and how each table is read. A table is
read whole once, as of one time, its *baseline*. All later changes from the feed have later times,
so they win over what was read. A table with a new baseline is read again.

Rules of the stored state
    1. It is written before the cursor that depends on it is saved; writing it again changes
       nothing.
    2. A table is read after every transaction that was open when its baseline was set has ended. So
       the read sees all changes that the feed had returned until then, even those that were not
       visible yet.

Law N13: ``docs/spec/connectors.md``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, field
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Generic,
    Literal,
    NamedTuple,
    Protocol,
    TypeAlias,
    TypeVar,
)

from lakesync.connectors.port import SourceColumn
from lakesync.errors import AdapterRefused
from lakesync.systems.sql.table_plan import Plan, row_id_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from lakesync.connectors.port import Storage
    from lakesync.systems.sql.database_values import Values
    from lakesync.systems.sql.sql_settings import PolledTable

UNCHANGED: Final = False
"""A value that is stored outside its row and did not change: it is not in the log."""
Value: TypeAlias = bytes | Literal[False] | None
"""A value's printed form; None for NULL; or `UNCHANGED`."""
Row: TypeAlias = tuple[Value, ...]

# --- tables ---------------------------------------------------------------------------------------


class CapturableLook(Protocol):
    """A table at the source."""

    @property
    def table_id(self) -> int:
        """The source's number for the table; 0 if it has none."""
        ...

    @property
    def columns(self) -> Mapping[str, str]:
        """SQL types by name, of the columns that the log has."""
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


L = TypeVar("L", bound=CapturableLook)


class CapturableTables(ABC, Generic[L]):
    """The configured tables, as they are at the source.

    Attributes:
        settings: what is read of each.
        faults: what is wrong with those that cannot be captured, and what to do.
        looks: the others.
    """

    def __init__(self, settings: Mapping[str, PolledTable], values: Values) -> None:
        self.settings = settings
        self.faults: dict[str, str] = {}
        self.looks: dict[str, L] = {}
        self._values = values

    @abstractmethod
    def look(self, cursor: Any) -> None:
        """Query the state of all tables."""

    @abstractmethod
    def publish(self, cursor: Any, *, is_made: bool) -> bool:
        """Have the log contain their changes; return whether something was created for that.

        Raises:
            AdapterRefused: none can be captured, or the user may not; the message says what to do.
        """

    @abstractmethod
    def plan(self, cursor: Any, name: str) -> Plan:
        """Return how a table is read, as it is now.

        Raises:
            AdapterRefused: a configured column is missing, or the table does not exist.
        """

    @abstractmethod
    def xid(self, cursor: Any) -> str:
        """Return what must have ended before a table is read: all that the feed has returned."""

    def types(self, name: str) -> dict[str, str]:
        """Return `Plan.altered_by` of the configured columns that the table has."""
        look, settings = self.looks[name], self.settings[name]
        key = settings.key or look.primary_key
        return {
            each.name: self._values.alters(each)
            for each in self._source_columns(look)
            if settings.columns is None or each.name in {*settings.columns, *key}
        }

    def _source_columns(self, look: L) -> tuple[SourceColumn, ...]:
        return tuple(
            SourceColumn(name, self._values.column_type(sql_type), source_type=sql_type)
            for name, sql_type in look.columns.items()
        )


class Captured:
    """The captured tables of one connector.

    Attributes:
        kept: the stored state of each table.
        tables: those that can be captured, as the source last reported.
    """

    def __init__(
        self,
        slot: str,
        tables: CapturableTables[Any],
        storage: Storage,
    ) -> None:
        self._slot = slot
        self._storage = storage
        self.kept = Kept()
        self.tables = tables

    def load(self) -> None:
        self.kept = kept_in(self._storage)

    def save(self) -> None:
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


# --- columns --------------------------------------------------------------------------------------


class CapturedTable(NamedTuple):
    """How the logged rows of one table are decoded, since it was last altered."""

    plan: Plan
    places: tuple[int, ...]
    """The position of each of the plan's columns in a row of the source."""
    converts: tuple[Callable[[Any], Any], ...]
    key_places: tuple[int, ...]
    """The positions of the key's columns among the plan's."""

    @property
    def name(self) -> str:
        return self.plan.settings.name

    @property
    def types(self) -> dict[str, str]:
        """What of each column changes if the table must be read again."""
        return self.plan.altered_by

    def values(self, row: Sequence[Any]) -> dict[str, Any]:
        """Return a row's values by column, without those missing in the log.

        Raises:
            ValueError: JSON has no such value; the message names the column.
        """
        values: dict[str, Any] = {}
        for name, place, convert in zip(self.plan.names, self.places, self.converts, strict=True):
            value = row[place]
            if value is None:
                values[name] = None
            elif value is not UNCHANGED:
                try:
                    values[name] = convert(value)
                except ValueError as exc:
                    raise ValueError(f"the column {name}: {exc}") from exc
        return values

    def row_id(self, row: Sequence[Any]) -> str:
        """Return the id of a row.

        Raises:
            ValueError: JSON has no such value, or the key is missing in the log.
        """
        key = []
        for at in self.key_places:
            value = row[self.places[at]]
            if value is None or value is UNCHANGED:
                raise ValueError(f"the key's column {self.plan.names[at]} is not in the log")
            key.append(self.converts[at](value))
        return row_id_of(key)

    def omitted(self, row: Sequence[Any]) -> tuple[str, ...]:
        """Return the columns whose values are missing in the log, by the source's names."""
        return tuple(
            name
            for name, place in zip(self.plan.columns, self.places, strict=True)
            if row[place] is UNCHANGED
        )


# --- the stored state -----------------------------------------------------------------------------


CAPTURE: Final = "capture"
"""Its place in the storage."""


@dataclass
class Baseline:
    """The time as of which a table is read whole, and the table's definition then."""

    us: int
    """The time of its rows."""
    xid: str
    """What must have ended before it is read: transactions with a lower number (PostgreSQL), or the
    log's up to this position (MySQL)."""
    table_id: int
    """The source's number for the table; 0 if it has none."""
    types: dict[str, str]
    """`Plan.altered_by`: with another column, or another type, the table is read again."""
    key: list[str]
    parts: str = ""
    """Of a partitioned table, which partitions it had, and what was stored in each; a change of
    them is not in the log."""


@dataclass
class Kept:
    """The stored state."""

    slot: str = ""
    """The slot that this connector created, or is about to create; empty if the source has none."""
    made: bool = False
    """Whether the connector created the publication too."""
    floor_us: int = 0
    """All changes from now on have later times."""
    again: str = ""
    """The reason why all tables were last read again."""
    tables: dict[str, Baseline] = field(default_factory=dict)

    @property
    def all(self) -> dict[str, Any]:
        return asdict(self)

    def mark(
        self,
        table: str,
        us: int,
        xid: str,
        table_id: int,
        types: Mapping[str, str],
        key: Sequence[str],
        parts: str = "",
    ) -> None:
        self.tables[table] = Baseline(us, xid, table_id, dict(types), list(key), parts)


def kept_in(storage: Storage) -> Kept:
    """Read the stored state; empty at first."""
    stored = storage.read(CAPTURE) or {}
    tables = {name: Baseline(**mark) for name, mark in stored.pop("tables", {}).items()}
    return Kept(**stored, tables=tables)


def keep(storage: Storage, kept: Kept) -> None:
    """Store the state. Safe to repeat."""
    storage.write(kept.all, CAPTURE)
