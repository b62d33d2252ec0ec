"""What a client sees: one decision, used for everything that leaves the gateway.

The decision about a row uses the columns that the rules read, before and after a change, never the
partial delta. Which columns are left out of a row depends on claims (`lakesync.core.omission`).
Laws V1-V6 and V12: ``docs/spec/visibility.md``.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, TypeAlias

from lakesync.core.comparing import RULE_VALUE_BYTES_MAX, Condition, condition
from lakesync.core.omission import Omissions, delta_without, state_without
from lakesync.core.scope import EVERYTHING, NOTHING, OTHERS, Scope, digest_of
from lakesync.core.token_claims import resolved
from lakesync.core.transition import Transition, transition_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from lakesync.core.delta import Delta
    from lakesync.core.merge import RowState
    from lakesync.core.omission import Omitted
    from lakesync.core.rules import Bucket, Filter, SyncRules
    from lakesync.core.token_claims import Claims
    from lakesync.core.values import CanonicalJson

RuleValues: TypeAlias = "Mapping[str, CanonicalJson]"
"""The columns of one row that rules read; None for a row that does not exist."""


class Viewer:
    """What one client may see and write: rules with its claims filled in. Immutable; may be kept.

    Args:
        rules: the rules in force.
        claims: the client's.
        generation: `lakesync.core.logged.LoggedColumns.generation`, a part of its scope.
    """

    def __init__(self, rules: SyncRules, claims: Claims, generation: int = 0) -> None:
        self._rules = rules
        self._generation = generation
        self._claims = claims
        self._omissions = Omissions(rules.omit, claims)
        self._every_row: dict[str, bool] = {}
        self._readers: dict[str, Callable[[RuleValues], bool]] = {}
        self._writers: dict[str, Callable[[RuleValues | None, RuleValues | None], bool]] = {}

    @property
    def sees_everything(self) -> bool:
        """Return whether the rules hide nothing from the client: no row, and no column."""
        return self.sees_every_row and not self._omissions

    @property
    def sees_every_row(self) -> bool:
        """Return whether there are no rules about rows at all."""
        return not self._rules.buckets

    def sees_rows_of(self, table: str) -> bool:
        """Return whether the client sees every row of a table."""
        every = self._every_row.get(table)
        if every is None:
            covering = self._rules.covering(table)
            every = self.sees_every_row or any(not bucket.filters for bucket in covering)
            self._every_row[table] = every
        return every

    def omitted(self, table: str) -> Omitted:
        """Return the columns of a table that are left out of what the client is sent."""
        return self._omissions.of(table)

    def shown(self, delta: Delta) -> Delta | None:
        """Return a visible row's delta as the client is sent it; None if nothing is left."""
        omitted = self._omissions.of(delta.table)
        return delta_without(delta, omitted) if omitted else delta

    def shown_state(self, table: str, state: RowState) -> RowState:
        """Return the part of a visible row that the client may know."""
        omitted = self._omissions.of(table)
        return state_without(state, omitted) if omitted else state

    def sees(self, table: str, row: RuleValues | None) -> bool:
        """Return whether the client may see a row."""
        if row is None:
            return False
        decide = self._readers.get(table)
        if decide is None:
            columns = sorted(self._rules.columns(table))
            decide = self._readers[table] = _by_name(self.reader(table, columns), columns)
        return decide(row)

    def may_see(self, table: str) -> bool:
        """Return whether a table could contain rows that the client may see."""
        return self.sees_every_row or any(
            all(resolved(item.value, self._claims) for item in bucket.filters)
            for bucket in self._rules.covering(table)
        )

    def transition(
        self, table: str, before: RuleValues | None, after: RuleValues | None
    ) -> Transition:
        """Return the effect of a row's change on the client."""
        saw = self.sees(table, before)
        # Most changes touch no column that a rule reads.
        sees = saw if after == before else self.sees(table, after)
        return transition_of(saw, sees, ends=after is None)

    def reader(
        self, table: str, columns: Sequence[str]
    ) -> Callable[[Sequence[CanonicalJson | None]], bool]:
        """Return the decision of `sees`, for rows given as values in the order of some columns.

        Args:
            table: the table.
            columns: all that the rules read, and possibly more.
        """
        if self.sees_every_row:
            return _always
        return self._any_of([bucket.filters for bucket in self._rules.covering(table)], columns)

    def may_write(self, table: str, before: RuleValues | None, after: RuleValues | None) -> bool:
        """Return whether the client may change a row so.

        Where ``write`` filters restrict the table, the row must pass them before and after.
        Elsewhere the client must have seen the row, or the row is new. Otherwise a client that
        guesses the id of a hidden row could make it visible by writing it, and would be sent all of
        it.

        Args:
            table: the row's table.
            before: the row as it was before the commit; None if there was none.
            after: as it would be; None if it would be deleted.
        """
        decide = self._writers.get(table)
        if decide is None:
            decide = self._writers[table] = self._writer(table)
        return decide(before, after)

    def scope(self) -> Scope:
        """Return, by table, the digest of the rules that choose the rows and columns."""
        others = self._digest(OTHERS)
        digests = {table: self._digest(table) for table in self._rules.tables()}
        return Scope(
            others, {table: digest for table, digest in digests.items() if digest != others}
        )

    def _writer(self, table: str) -> Callable[[RuleValues | None, RuleValues | None], bool]:
        if self.sees_every_row:
            return lambda before, after: True  # noqa: ARG005 - whatever the row
        restricted = self._rules.write_filters(table)
        if not restricted:
            return lambda before, after: before is None or self.sees(table, before)  # noqa: ARG005
        columns = sorted(self._rules.write_columns(table))
        passes = _by_name(self._any_of(restricted, columns), columns)
        return lambda before, after: all(passes(row) for row in (before, after) if row is not None)

    def _any_of(
        self, buckets: Sequence[Sequence[Filter]], columns: Sequence[str]
    ) -> Callable[[Sequence[CanonicalJson | None]], bool]:
        """Decide by buckets: a row passes if it passes all filters of any bucket."""
        places = {name: place for place, name in enumerate(columns)}
        tests_of = [
            [(places[item.column], self._test(item)) for item in filters] for filters in buckets
        ]

        def decide(row: Sequence[CanonicalJson | None]) -> bool:
            for tests in tests_of:
                for place, test in tests:
                    if not test(row[place]):
                        break
                else:
                    return True
            return False

        return decide

    def _test(self, item: Filter) -> Condition:
        return condition(item.op, resolved(item.value, self._claims))

    def _digest(self, table: str) -> str:
        rows, omitted = self._rows_digest(table), self._omissions.of(table)
        return digest_of([rows, sorted(omitted)]) if omitted and rows != NOTHING else rows

    def _rows_digest(self, table: str) -> str:
        """Return the digest of a table's buckets, claims filled in."""
        if self.sees_rows_of(table):
            return EVERYTHING
        bound = [self._bound(bucket) for bucket in self._rules.covering(table)]
        # A filter without a value, because its claim is missing, matches nothing.
        some = [filters for filters in bound if all(values for *_, values in filters)]
        return digest_of([self._generation, sorted(some, key=json.dumps)]) if some else NOTHING

    def _bound(self, bucket: Bucket) -> list[list[Any]]:
        return sorted(
            (
                [item.column, item.op, sorted(map(repr, resolved(item.value, self._claims)))]
                for item in bucket.filters
            ),
            key=json.dumps,
        )


def rule_values(state: RowState, columns: frozenset[str]) -> RuleValues | None:
    """Return those columns of a row that rules read; None if there is no row."""
    registers = state.columns
    if not registers and not state.alive:
        return None
    return rule_columns(
        ((name, registers[name][2]) for name in columns if name in registers), columns
    )


def rule_columns(
    row: Iterable[tuple[str, CanonicalJson]], columns: frozenset[str]
) -> dict[str, CanonicalJson]:
    """Return those of some columns that rules read and that are short enough to match anything."""
    return {
        name: value for name, value in row if name in columns and len(value) <= RULE_VALUE_BYTES_MAX
    }


def _by_name(
    decide: Callable[[Sequence[CanonicalJson | None]], bool], columns: Sequence[str]
) -> Callable[[RuleValues], bool]:
    """Return a decision about rows given as mappings by column name."""
    return lambda row: decide(tuple(map(row.get, columns)))


def _always(row: object) -> bool:
    del row
    return True
