"""What a client sees: one decision, used for everything that leaves the gateway.

The decision about a row uses the columns that the rules read, before and after a change, never the
partial delta. Filters compare these with the claims of the client's token; a missing, null or
non-scalar claim matches nothing. Laws V1-V5: ``docs/spec/visibility.md``.

- *Omitted columns*: which columns are left out of the rows that a client is sent is decided by
  claims alone. So the rows of a table that a client is sent have the same columns while its scope
  stays the same. Names that differ only in case are the same name, as everywhere in a gateway.
  Law V12; the reasons: ``docs/adr/0025-omitted-columns.md``.
- *Scope*: a digest of the rules and claims that decide a client's rows, table by table, as text. If
  a client hands back a scope other than the current one, it holds rows that it may no longer see,
  or lacks rows that it may see. This concerns only the tables whose digests differ. Law V6.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from lakesync.core.delta import Op, canonical, known_delta
from lakesync.core.names import folded, is_identifier
from lakesync.core.rules import RULE_VALUE_BYTES_MAX, Claim, Condition, condition, is_operand

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from lakesync.core.delta import CanonicalJson, Delta
    from lakesync.core.merge import RowState
    from lakesync.core.rules import (
        Bucket,
        ClaimFilter,
        Filter,
        Literal,
        Omission,
        Operand,
        SyncRules,
    )

# --- claims of a token ----------------------------------------------------------------------------


_EXACT_BITS: Final = 53
_LARGEST_BITS: Final = 3 * RULE_VALUE_BYTES_MAX
"""Longer integers are longer than any value that is compared."""

Claims: TypeAlias = "Mapping[str, Any]"
"""The token's claims, ``sub`` and ``gw`` included."""


def resolved(operand: Operand, claims: Claims) -> tuple[Literal, ...]:
    """Return the values of a filter's operand; none if the claim is missing or null."""
    if not isinstance(operand, Claim):
        return operand if isinstance(operand, tuple) else (operand,)
    claimed: Any = claims
    for name in operand.path:
        claimed = claimed.get(name) if isinstance(claimed, Mapping) else None
    values = claimed if isinstance(claimed, list) else [claimed]
    return tuple(value for value in map(_exact, values) if is_operand(value))


def _exact(value: Any) -> Any:
    """Return an integer that no JSON number of a row can be as the text that rows have for it."""
    is_large = type(value) is int and value.bit_length() > _EXACT_BITS
    if not is_large:
        return value
    return str(value) if value.bit_length() <= _LARGEST_BITS else None


def passes(item: ClaimFilter, claims: Claims) -> bool:
    """Return whether a token passes a condition on a claim.

    For a list it is enough that one value passes; with ``neq`` all of them must pass.
    """
    values = resolved(item.claim, claims)
    test = condition(item.op, resolved(item.value, claims))
    every = all if item.op == "neq" else any
    return bool(values) and every(test(canonical(value)) for value in values)


# --- the effect of a row's change -----------------------------------------------------------------


class Transition(Enum):
    """The effect of a row's change on one client."""

    NOTHING = "nothing"
    """Hidden before and after: the client is sent nothing."""
    CHANGE = "change"
    """Visible before and after: it is sent the delta."""
    ENTER = "enter"
    """It is sent the whole row."""
    LEAVE = "leave"
    """It is sent a removal."""
    END = "end"
    """Visible before, now deleted: it is sent the delete, which is final."""


def transition_of(saw: bool, sees: bool, *, ends: bool) -> Transition:  # noqa: FBT001 - a truth table
    """Return the effect of a row's change on a client, from whether it saw the row and sees it now.

    Args:
        saw: it saw the row before.
        sees: it may see the row after.
        ends: there is no row after.
    """
    if saw and ends:
        return Transition.END
    if saw:
        return Transition.CHANGE if sees else Transition.LEAVE
    return Transition.ENTER if sees else Transition.NOTHING


# --- omitted columns ------------------------------------------------------------------------------


Omitted = frozenset[str]
"""Columns that are left out, by their folded names."""


class Omissions:
    """The columns that are left out for one client. Immutable; may be kept.

    Args:
        omit: the omissions of the rules in force.
        claims: the client's.
    """

    def __init__(self, omit: Iterable[Omission], claims: Claims) -> None:
        self._omit = [
            (frozenset(map(folded, each.tables)), frozenset(map(folded, each.columns)))
            for each in omit
            if not (each.unless and all(passes(item, claims) for item in each.unless))
        ]
        self._of: dict[str, Omitted] = {}

    def __bool__(self) -> bool:
        return bool(self._omit)

    def of(self, table: str) -> Omitted:
        """Return the columns left out of a table; for `OTHERS`, those left out of every table."""
        omitted = self._of.get(table)
        if omitted is None:
            name = folded(table)
            chosen = [columns for tables, columns in self._omit if not tables or name in tables]
            omitted = self._of[table] = frozenset().union(*chosen)
        return omitted


def delta_without(delta: Delta, omitted: Omitted) -> Delta | None:
    """Return a delta as a client is sent it: unchanged if it has none of the columns.

    Otherwise the result is a delta with the same stamp and client, and its own id. None if nothing
    is left: an update without columns changes nothing.
    """
    kept = tuple([column for column in delta.columns if folded(column[0]) not in omitted])
    if len(kept) == len(delta.columns):
        return delta
    if not kept and delta.op is Op.UPDATE:
        return None
    return known_delta(*delta[:5], kept)


def state_without(state: RowState, omitted: Omitted) -> RowState:
    """Return a row as a client may know it: unchanged if it has none of the columns."""
    kept = {name: each for name, each in state.columns.items() if folded(name) not in omitted}
    return state if len(kept) == len(state.columns) else state._replace(columns=kept)


# --- scopes ---------------------------------------------------------------------------------------


EVERYTHING: Final = "*"
"""The digest of a table whose rows are all visible; the scope's text if that holds for all tables.
"""
NOTHING: Final = "-"
"""The digest of a table of which no row is visible."""
UNKNOWN: Final = "_"
"""The digest of a table of which the client holds only a part of what it may see: equal to none."""
OTHERS: Final = ""
"""Stands for all tables that a scope does not name."""
SCOPE_CHARS_MAX: Final = 4_096
"""Length of a scope's text; a longer one is replaced by one digest, which names no tables."""
_DIGEST_BYTES: Final = 9
_WHOLE: Final = "="


@dataclass(frozen=True, slots=True)
class Scope:
    """By table, the digest of what decides on its rows. Equal digests mean equally visible rows."""

    others: str = EVERYTHING
    tables: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Tables whose digest differs from ``others``."""

    def of(self, table: str) -> str:
        """Return a table's digest, or that of `OTHERS`."""
        return self.tables.get(table, self.others)

    @property
    def is_listed(self) -> bool:
        """Return whether the text was short enough to list digests by table."""
        return not self.others.startswith(_WHOLE)

    def changed(self, other: Scope) -> list[str]:
        """Get the tables with another digest in another scope, in order; `OTHERS` is the last."""
        named = sorted({*self.tables, *other.tables})
        differing = [table for table in named if self.of(table) != other.of(table)]
        return differing if self.others == other.others else [*differing, OTHERS]

    def marked(self, table: str, digest: str) -> Scope:
        """Return the scope with a changed digest of one table, or of `OTHERS`."""
        if table == OTHERS:
            return replace(self, others=digest)
        return replace(self, tables=MappingProxyType({**self.tables, table: digest}))

    def forgotten(self) -> Scope:
        """Return the scope of a client that may hold anything of what rules decide about."""
        tables = {table: _forgotten(digest) for table, digest in self.tables.items()}
        return Scope(_forgotten(self.others), MappingProxyType(tables))

    def text(self) -> str:
        """Return the text that a client stores and hands: ``others~table.digest~…``."""
        digests = [f"{name}.{digest}" for name, digest in sorted(self.tables.items())]
        text = "~".join([self.others, *digests])
        return text if len(text) <= SCOPE_CHARS_MAX else _WHOLE + digest_of(text)


def _forgotten(digest: str) -> str:
    return digest if digest == EVERYTHING else UNKNOWN


def scope_of(text: str) -> Scope:
    """Read what `Scope.text` gave; anything else gives a scope that equals none."""
    others, *named = text.split("~")
    tables: dict[str, str] = {}
    for item in named:
        name, _, digest = item.partition(".")
        if not is_identifier(name) or not digest:
            return Scope(_WHOLE)
        tables[name] = digest
    return Scope(others, MappingProxyType(tables))


def digest_of(value: object) -> str:
    """Return a short digest of a JSON value: 72 bits, as a collision would benefit nobody."""
    text = json.dumps(value, separators=(",", ":")).encode()
    digest = hashlib.sha256(text).digest()[:_DIGEST_BYTES]
    return base64.urlsafe_b64encode(digest).decode()


# --- the decision ---------------------------------------------------------------------------------


RuleValues: TypeAlias = "Mapping[str, CanonicalJson]"
"""The columns of one row that rules read; None for a row that does not exist."""


class Viewer:
    """What one client may see and write: rules with its claims filled in. Immutable; may be kept.

    Args:
        rules: the rules in force.
        claims: the client's.
        generation: `lakesync.core.config.LoggedColumns.generation`, a part of its scope.
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
