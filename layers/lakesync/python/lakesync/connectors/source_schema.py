"""Notices changes of a source's schema: columns that are new, gone or of another type.

Before a poll, at most each quarter of an hour, a connector that tells its columns is asked for
them, and they are compared with those of before, which are kept in its storage. Other settings make
other columns: they are the first of their own, and no change.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from lakesync.connectors.port import TellsColumns
from lakesync.connectors.storage import digest
from lakesync.core.column_types import widens
from lakesync.result import Err

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from lakesync.connectors.definition import Definition
    from lakesync.connectors.port import Connector, SourceTable
    from lakesync.connectors.state import PollState
    from lakesync.connectors.storage import Storage

LOOK_MS: Final = 900_000
"""How long the columns that a source told are taken to be its columns."""
CHANGES_KEPT_MAX: Final = 20
"""Changes of a source's schema that a connector's state has: the latest."""
NOTE: Final = "note"
"""Nothing is lost: a new column, a wider type."""
WARNING: Final = "warning"
"""Values may be other ones, of the same type."""
SEVERE: Final = "severe"
"""Something is gone, or rows may no longer fit their schema."""
_PATH: Final = ("columns",)


@dataclass(frozen=True)
class SchemaChange:
    """One change of a source's schema."""

    at_ms: int
    """When it was noticed."""
    table: str
    """The source's name for the table."""
    column: str
    """Empty for a change of the table itself."""
    severity: str
    change: str
    """What changed, as words for people."""


class SourceSchema:
    """The columns of one connector's source.

    Args:
        storage: the connector's.
        definition: its settings.
    """

    def __init__(self, storage: Storage, definition: Definition) -> None:
        self._storage = storage
        self._unsaved: dict[str, Any] | None = None
        self._of = digest(definition.type, str(sorted(definition.configuration.items())))

    def look(self, connector: Connector, state: PollState, now_ms: int) -> list[SchemaChange]:
        """Return what changed since the previous look, and add it to the state.

        The state is to be saved before `keep` is called. A source that does not answer is looked at
        again with the next poll, which says what is wrong.
        """
        self._unsaved = None
        if not isinstance(connector, TellsColumns) or now_ms - state.looked_ms < LOOK_MS:
            return []
        answered = connector.columns()
        if isinstance(answered, Err):
            return []
        now = {table.name: _described(table) for table in answered.value}
        stored = self._storage.read(*_PATH) or {}
        changes: list[SchemaChange] = []
        if stored.get("of") == self._of:
            changes = [SchemaChange(now_ms, *one) for one in _changes(stored["tables"], now)]
        if (stored.get("of"), stored.get("tables")) != (self._of, now):
            self._unsaved = {"of": self._of, "tables": now}
        state.looked_ms = now_ms
        known = [{**each, "at_ms": 0} for each in state.schema_changes]
        # Killed before the columns were kept, it notices the same once more.
        latest = known[-len(changes) :] if changes else []
        fresh = [each for each in changes if {**asdict(each), "at_ms": 0} not in latest]
        state.schema_changes += [asdict(each) for each in fresh]
        del state.schema_changes[:-CHANGES_KEPT_MAX]
        return fresh

    def keep(self) -> None:
        """Keep the columns that were told, for the next look."""
        if self._unsaved is not None:
            self._storage.write(self._unsaved, *_PATH)


def _described(table: SourceTable) -> dict[str, Any]:
    columns = {
        column.name: [column.type, column.source_type, column.nullable] for column in table.columns
    }
    return {"key": list(table.key), "columns": columns}


def _changes(
    before: Mapping[str, Any], now: Mapping[str, Any]
) -> Iterator[tuple[str, str, str, str]]:
    """Yield the table, the column, the severity and the words of each change."""
    for table, was in before.items():
        if table not in now:
            yield table, "", SEVERE, "the table is gone, or may no longer be read"
            continue
        if was["key"] != now[table]["key"]:
            keys = [", ".join(each["key"]) or "none" for each in (was, now[table])]
            yield table, "", SEVERE, f"its key was {keys[0]}, and is {keys[1]}"
        for column, severity, words in _of_columns(was["columns"], now[table]["columns"]):
            yield table, column, severity, words


def _of_columns(
    before: Mapping[str, Any], now: Mapping[str, Any]
) -> Iterator[tuple[str, str, str]]:
    for column in [*before, *(name for name in now if name not in before)]:
        if column not in now:
            yield column, SEVERE, "is gone; its last values stay"
        elif column not in before:
            yield column, NOTE, f"is new: {_named(now[column])}"
        elif before[column][:2] != now[column][:2]:
            words = f"was {_named(before[column])}, and is {_named(now[column])}"
            yield column, _severity(before[column], now[column]), words
        elif before[column][2] != now[column][2]:
            yield column, NOTE, "may be null now" if now[column][2] else "may no longer be null"


def _severity(was: list[Any], now: list[Any]) -> str:
    if was[0] == now[0]:
        return WARNING
    return NOTE if widens(was[0], now[0]) else SEVERE


def _named(column: list[Any]) -> str:
    kind, source_type = column[0], column[1]
    return f"{source_type} ({kind})" if source_type and source_type != kind else str(kind)
