"""What sync rules have to do with a push: may this client write the row, and what to log of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakesync.core.visibility import rule_values
from lakesync.wire.rule_rows import RuleRowsWriter

if TYPE_CHECKING:
    from lakesync.core.merge import RowState
    from lakesync.core.rules import SyncRules
    from lakesync.core.visibility import Viewer
    from lakesync.gateway.limits import Limits


class Judge:
    """Judges the deltas of one part of a push, shard by shard."""

    def __init__(self, rules: SyncRules, viewer: Viewer, limits: Limits) -> None:
        self._rules = rules
        self._viewer = viewer
        self._bytes_max = limits.entry_rules_bytes_max
        self._columns: dict[str, tuple[frozenset[str], frozenset[str]]] = {}
        self._writer = RuleRowsWriter()

    def begin(self) -> None:
        """Begin another shard's entry."""
        self._writer = RuleRowsWriter()

    def is_full(self) -> bool:
        """Tell whether the entry has no room for what the rules look at of one more delta."""
        return self._writer.size_bytes > self._bytes_max

    def may_write(self, table: str, before: RowState, after: RowState) -> bool:
        """Tell whether the client may change a row so."""
        _, columns = self._of(table)
        rows = (rule_values(before, columns), rule_values(after, columns))
        return self._viewer.may_write(table, *rows)

    def add(self, table: str, before: RowState, after: RowState) -> None:
        """Note what the rules look at of the entry's next delta."""
        columns, _ = self._of(table)
        self._writer.add(table, rule_values(before, columns), rule_values(after, columns))

    def encoded(self) -> bytes:
        """Give what was noted of the entry."""
        return self._writer.encoded()

    def _of(self, table: str) -> tuple[frozenset[str], frozenset[str]]:
        found = self._columns.get(table)
        if found is None:
            rules = self._rules
            found = self._columns[table] = (rules.columns(table), rules.write_columns(table))
        return found
