"""Which columns of a row are logged with each delta, so that sync rules can be applied to the log.

They are the columns that the current rules read, and those that earlier rules read. So an entry has
the columns that a filter needs from the time the filter was first declared, whatever rules were in
force in between.
Law V7: ``docs/spec/visibility.md``.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from lakesync.core.rules import RULE_COLUMNS_MAX

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lakesync.core.clock import Stamp
    from lakesync.core.rules import SyncRules

_EVERY_TABLE: Final = ""


@dataclass(frozen=True, slots=True)
class LoggedColumns:
    """The columns of each table that the log keeps."""

    tables: Mapping[str, frozenset[str]] = field(default_factory=lambda: MappingProxyType({}))
    """By table; the empty name stands for every table."""
    generation: int = 0
    """How often earlier columns had to be given up. It is part of every client's scope: rows that
    were read before cannot be decided in the same way, and are read again."""
    since: Stamp = 0
    """Entries above this stamp have all of these columns."""

    def __bool__(self) -> bool:
        """Return whether any column is kept."""
        return bool(self.tables)

    def of(self, table: str) -> frozenset[str]:
        """Return the columns of a table."""
        nothing: frozenset[str] = frozenset()
        return self.tables.get(table, nothing) | self.tables.get(_EVERY_TABLE, nothing)

    def with_rules(self, rules: SyncRules) -> LoggedColumns:
        """Return the columns kept under new rules: also the earlier columns, where they fit."""
        grown = {
            table: self.of(table) | rules.columns(table)
            for table in {*self.tables, *_tables(rules)}
        }
        if all(len(columns) <= RULE_COLUMNS_MAX for columns in grown.values()):
            return replace(self, tables=_some(grown))
        needed = {table: rules.columns(table) for table in _tables(rules)}
        return LoggedColumns(_some(needed), self.generation + 1, self.since)


def logged_to_json(logged: LoggedColumns) -> dict[str, Any]:
    """Write them as plain JSON values; `logged_from_json` reads them back."""
    tables = {table: sorted(columns) for table, columns in sorted(logged.tables.items())}
    return {"tables": tables, "generation": logged.generation, "since": logged.since}


def logged_from_json(body: Mapping[str, Any]) -> LoggedColumns:
    """Read what `logged_to_json` wrote."""
    tables = {table: frozenset(columns) for table, columns in body["tables"].items()}
    return LoggedColumns(MappingProxyType(tables), body["generation"], body["since"])


def _tables(rules: SyncRules) -> set[str]:
    return {_EVERY_TABLE} | {table for bucket in rules.buckets for table in bucket.tables}


def _some(tables: Mapping[str, frozenset[str]]) -> Mapping[str, frozenset[str]]:
    return MappingProxyType({table: columns for table, columns in tables.items() if columns})
