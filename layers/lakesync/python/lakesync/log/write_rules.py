"""Sync rules applied to a push: may the client write a row, and which columns are logged?"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from lakesync.core.delta import Op
from lakesync.core.merge import EMPTY, state_of
from lakesync.core.names import folded
from lakesync.core.visibility import rule_values
from lakesync.errors import ColumnOmitted, Forbidden, RowDeleted
from lakesync.wire.rule_rows import RuleRowsWriter

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lakesync.core.config import GatewayConfig
    from lakesync.core.delta import Delta
    from lakesync.core.merge import RowState
    from lakesync.core.visibility import RuleValues, Viewer
    from lakesync.errors import LakeSyncError
    from lakesync.log.limits import Limits
    from lakesync.ports import RowKey

_FORBIDDEN: Final = "the sync rules do not let you change this row, before or after the change"
_OMITTED: Final = (
    "the sync rules leave a column out of what you are sent, which you cannot write either; leave "
    "it out of the change"
)
_DELETED: Final = (
    "the row was deleted, and rules filter its table: of an update alone they cannot tell who may "
    "see it; sync, and insert the whole row if it is still wanted"
)
_FRAME_BYTES: Final = 8
"""An upper bound of a row's or column's cost besides its name and value."""


class WriteRules:
    """Decides on the deltas of one part of a push, shard by shard."""

    def __init__(
        self, config: GatewayConfig, viewer: Viewer, limits: Limits, *, revives: bool = False
    ) -> None:
        self._config = config
        self._rules = config.rules
        self._viewer = viewer
        self._revives = revives
        self._bytes_max = limits.entry_rules_bytes_max
        self._columns: dict[str, tuple[frozenset[str], frozenset[str]]] = {}
        self.begin()

    def begin(self) -> None:
        """Begin another shard's entry."""
        self._before: dict[RowKey, RowState] = {}
        self._size_bytes = 0

    def is_full(self) -> bool:
        """Return whether the entry has no room for the logged columns of one more delta."""
        return self._size_bytes > self._bytes_max

    def may_write(self, key: RowKey, before: RowState, after: RowState) -> bool:
        """Return whether the client may change a row so.

        The decision uses the row as it was before the commit: a client may give a row away and, in
        the same transaction, write the rest of it. If deletes win and the row does not exist, the
        decision uses what was written after the delete and would stay; so nobody can make it
        visible to themselves.
        """
        _, columns = self._of(key[0])
        before = self._before.get(key, before)
        stays = any(after.columns.get(name) == one for name, one in before.columns.items())
        before = before if stays else self._config.as_read(key[0], before)
        rows = (rule_values(before, columns), rule_values(after, columns))
        return self._viewer.may_write(key[0], *rows)

    def refusal(self, delta: Delta, before: RowState, after: RowState) -> LakeSyncError | None:
        """Return why the client may not make a change; None if it may.

        A client may not write a column that is left out of what it is sent, whatever the row is.
        `RowDeleted` is of the row as it is by now: an INSERT behind may still make it.
        """
        if self._viewer.shown(delta) is not delta:
            return ColumnOmitted(_OMITTED, field="columns")
        if not self.may_write((delta.table, delta.row_id), before, after):
            return Forbidden(_FORBIDDEN)
        if self._lacks_the_rest(delta, before, after):
            return RowDeleted(_DELETED)
        return None

    def _lacks_the_rest(self, delta: Delta, before: RowState, after: RowState) -> bool:
        """Return whether a change would make a row of which too little is left for the rules.

        An update of a deleted row has only its own columns. So has one of a row that is not there,
        if the table's deletions may have been forgotten. An INSERT is a whole row, unless its
        writer is not sent the columns that rules read.
        """
        table = delta.table
        exists = before.alive or before.columns
        if exists or self._revives or self._viewer.sees_rows_of(table):
            return False
        if delta.op is Op.DELETE:
            return False  # it makes no row
        if delta.op is Op.UPDATE and before.deleted:
            return not self._config.delete_wins(table)
        was_there = before.deleted or self._config.tombstone_horizons.get(table)
        if not was_there or self._config.as_read(table, after) is not after:
            return False
        columns = self._rules.columns(table)
        if delta.op is Op.INSERT and not self._viewer.omitted(table) & set(map(folded, columns)):
            return False
        return not self._viewer.sees(table, rule_values(after, columns))

    def note(self, key: RowKey, before: RowState, after: RowState) -> None:
        """Note that the entry changes a row."""
        columns, _ = self._of(key[0])
        if key not in self._before:
            self._before[key] = before
            self._size_bytes += _size(self._values(key, before, columns))
        self._size_bytes += _size(self._values(key, after, columns))

    def encoded(self, deltas: Sequence[Delta], rows: Mapping[RowKey, RowState]) -> bytes:
        """Get the columns that the rules read of an entry's rows: before the commit, and after it.

        Args:
            deltas: the entry's, in order.
            rows: the rows after the commit; an event's row is the event.
        """
        if not self._rules.buckets and not self._config.logged:
            return b""  # rules that only leave columns out read no row
        writer = RuleRowsWriter(lambda table: sorted(self._of(table)[0]))
        keys = [(delta.table, delta.row_id) for delta in deltas]
        times = Counter(keys)
        for key, delta in zip(keys, deltas, strict=True):
            columns, _ = self._of(delta.table)
            before, after = self._before.get(key, EMPTY), rows.get(key) or state_of(delta)
            rule_rows = self._values(key, before, columns), self._values(key, after, columns)
            # A deleted row also consists of its delete: the delta is not the whole row.
            alone = times[key] == 1 and before == EMPTY
            writer.add(delta.table, *rule_rows, alone=alone)
        return writer.encoded()

    def _values(self, key: RowKey, state: RowState, columns: frozenset[str]) -> RuleValues | None:
        return rule_values(self._config.as_read(key[0], state), columns)

    def _of(self, table: str) -> tuple[frozenset[str], frozenset[str]]:
        columns = self._columns.get(table)
        if columns is None:
            kept = self._config.logged.of(table)
            decisive = self._rules.columns(table) | self._rules.write_columns(table)
            columns = self._columns[table] = (kept, decisive)
        return columns


def _size(row: RuleValues | None) -> int:
    return _FRAME_BYTES + sum(_FRAME_BYTES + len(n) + len(v) for n, v in (row or {}).items())
