"""What a client sees: one decision, for everything that leaves the gateway.

A row is decided by the columns that the rules look at, before and after a change, never by the
partial delta. Laws V1-V6: ``docs/spec/visibility.md``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from lakesync.core.comparing import RULE_VALUE_BYTES_MAX, Condition, condition
from lakesync.core.rules import Bucket, Claim, Filter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from lakesync.core.merge import RowState
    from lakesync.core.rules import Literal, Operand, SyncRules
    from lakesync.core.values import CanonicalJson

Claims: TypeAlias = "Mapping[str, Any]"
"""The token's claims, ``sub`` and ``gw`` included."""
RuleValues: TypeAlias = "Mapping[str, CanonicalJson]"
"""The columns of one row that rules look at; a row that does not exist is None instead."""

EVERYTHING: Final = "*"
"""The scope of who sees every row."""
_SCOPE_BYTES: Final = 9


class Transition(Enum):
    """What a change of a row is to one client."""

    NOTHING = "nothing"
    """Hidden before and after: the client hears nothing."""
    CHANGE = "change"
    """Visible before and after: it gets the delta."""
    ENTER = "enter"
    """It gets the whole row."""
    LEAVE = "leave"
    """It gets a removal."""
    END = "end"
    """Visible before, and deleted: it gets the delete, and knows for good."""


class Viewer:
    """One client's eyes: rules with its claims filled in. Immutable, and safe to keep."""

    def __init__(self, rules: SyncRules, claims: Claims) -> None:
        self._rules = rules
        self._claims = claims
        self._tables: dict[str, Callable[[RuleValues], bool]] = {}
        self._writers: dict[str, Callable[[RuleValues], bool]] = {}

    @property
    def sees_everything(self) -> bool:
        """Tell whether there are no rules at all."""
        return not self._rules.buckets

    def sees(self, table: str, row: RuleValues | None) -> bool:
        """Tell whether the client may see a row."""
        if row is None:
            return False
        decide = self._tables.get(table)
        if decide is None:
            decide = self._tables[table] = self._reader(table)
        return decide(row)

    def transition(
        self, table: str, before: RuleValues | None, after: RuleValues | None
    ) -> Transition:
        """Tell what a change of a row is to the client."""
        saw = self.sees(table, before)
        # Most changes touch no column that a rule looks at.
        sees = saw if after == before else self.sees(table, after)
        if saw and after is None:
            return Transition.END
        if saw:
            return Transition.CHANGE if sees else Transition.LEAVE
        return Transition.ENTER if sees else Transition.NOTHING

    def may_write(self, table: str, before: RuleValues | None, after: RuleValues | None) -> bool:
        """Tell whether the client may change a row so: it must be its to write before and after."""
        decide = self._writers.get(table)
        if decide is None:
            decide = self._writers[table] = self._writer(table)
        return all(decide(row) for row in (before, after) if row is not None)

    def digest(self) -> str:
        """Give a digest of all that decides what the client sees; `EVERYTHING` without rules."""
        if self.sees_everything:
            return EVERYTHING
        tables = sorted({table for bucket in self._rules.buckets for table in bucket.tables})
        return _digest(self.scope([*tables, ""]))

    def scope(self, tables: Sequence[str]) -> dict[str, str]:
        """Give for each table a digest of what decides its rows; equal ones show equal rows."""
        return {table: _digest(self._bound(table)) for table in tables}

    def _reader(self, table: str) -> Callable[[RuleValues], bool]:
        if self.sees_everything:
            return _always
        return _any_of([self._all_of(bucket.filters) for bucket in self._rules.covering(table)])

    def _writer(self, table: str) -> Callable[[RuleValues], bool]:
        restricted = [
            bucket.write for bucket in self._rules.covering(table) if bucket.write is not None
        ]
        return _any_of([self._all_of(filters) for filters in restricted]) if restricted else _always

    def _all_of(self, filters: Sequence[Filter]) -> Callable[[RuleValues], bool]:
        tests = [(item.column, self._test(item)) for item in filters]
        if len(tests) == 1:
            ((column, test),) = tests
            return lambda row: test(row.get(column))

        def all_hold(row: RuleValues) -> bool:
            for column, test in tests:  # noqa: SIM110 - `all` and a generator take twice the time
                if not test(row.get(column)):
                    return False
            return True

        return all_hold

    def _test(self, item: Filter) -> Condition:
        return condition(item.op, resolved(item.value, self._claims))

    def _bound(self, table: str) -> list[object]:
        """Give the buckets of a table, claims filled in, in a form that equal ones share."""
        if self.sees_everything:
            return ["everything"]
        found = [self._bound_bucket(bucket) for bucket in self._rules.covering(table)]
        return sorted(found, key=json.dumps)

    def _bound_bucket(self, bucket: Bucket) -> list[object]:
        return sorted(
            (
                [item.column, item.op, sorted(map(repr, resolved(item.value, self._claims)))]
                for item in bucket.filters
            ),
            key=json.dumps,
        )


def rule_values(state: RowState, columns: frozenset[str]) -> RuleValues | None:
    """Give those columns of a row that rules look at; None if there is no row."""
    held = state.columns
    if not held and not state.alive:
        return None
    return rule_columns(((name, held[name][2]) for name in columns if name in held), columns)


def rule_columns(
    row: Iterable[tuple[str, CanonicalJson]], columns: frozenset[str]
) -> dict[str, CanonicalJson]:
    """Give those of some columns that rules look at and that are short enough to match anything."""
    return {
        name: value for name, value in row if name in columns and len(value) <= RULE_VALUE_BYTES_MAX
    }


def resolved(operand: Operand, claims: Claims) -> tuple[Literal, ...]:
    """Give the values that a filter's operand stands for; none if the claim is missing or null."""
    if not isinstance(operand, Claim):
        return operand if isinstance(operand, tuple) else (operand,)
    found: Any = claims
    for name in operand.path:
        found = found.get(name) if isinstance(found, Mapping) else None
    values = found if isinstance(found, list) else [found]
    return tuple(value for value in values if isinstance(value, str | int | float))


def _any_of(buckets: list[Callable[[RuleValues], bool]]) -> Callable[[RuleValues], bool]:
    if len(buckets) == 1:
        return buckets[0]

    def any_holds(row: RuleValues) -> bool:
        for decide in buckets:  # noqa: SIM110 - as above
            if decide(row):
                return True
        return False

    return any_holds


def _always(row: RuleValues) -> bool:
    del row
    return True


def _digest(value: object) -> str:
    text = json.dumps(value, separators=(",", ":")).encode()
    return hashlib.sha256(text).hexdigest()[: 2 * _SCOPE_BYTES]
