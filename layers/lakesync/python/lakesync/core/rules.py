"""Sync rules: which rows a client may see and write, declared once for a gateway.

Rules are buckets. A bucket names tables (none: all of them) and filters. A row is in a bucket if it
passes all its filters, and is visible if it is in any bucket. Without buckets every row is visible.
A client may write the rows that it sees, and new rows; ``write`` filters of a table's buckets
replace this. Besides buckets, omissions name columns that are left out of the rows, except for
clients with certain token claims.

Laws V1-V3 and V12: ``docs/spec/visibility.md``. How a value is compared: `lakesync.core.comparing`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

OPERATORS: Final = ("eq", "neq", "in", "gt", "lt", "gte", "lte")
ORDERED: Final = frozenset({"gt", "lt", "gte", "lte"})
CLAIM_PREFIX: Final = "jwt:"
BUCKETS_MAX: Final = 100
"""Buckets of one gateway. Each is evaluated for each delta that it covers."""
FILTERS_MAX: Final = 16
"""Filters of one bucket, without those of ``write``."""
RULE_COLUMNS_MAX: Final = 16
"""Columns of one table that filters may read. They are kept beside each delta in the log."""
OMISSIONS_MAX: Final = 100
"""Omissions of one gateway."""
OMITTED_COLUMNS_MAX: Final = 500
"""Columns of one omission: as many as a row may have."""
VALUES_MAX: Final = 200
"""Values of one ``in``. For more values use a claim, or a column of the row."""
WRITERS: Final = ("anyone", "filtered", "seen")
"""Who may write a table's rows: anyone any row; clients any row that passes the ``write`` filters;
or, without such filters, each client the rows that it sees, and new ones."""

Literal: TypeAlias = str | int | float | bool


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim of the token; a dotted path names a nested one."""

    path: tuple[str, ...]


Operand: TypeAlias = Literal | tuple[Literal, ...] | Claim


@dataclass(frozen=True, slots=True)
class Filter:
    """One condition on one column."""

    column: str
    op: str
    value: Operand


@dataclass(frozen=True, slots=True)
class Bucket:
    """A set of rows: those of some tables that pass all filters."""

    name: str
    tables: frozenset[str] = frozenset()
    """Empty means all tables."""
    filters: tuple[Filter, ...] = ()
    write: tuple[Filter, ...] | None = None
    """The conditions that a row must meet, before and after, for a client to change it. With None
    other buckets decide, or else a client may change what it sees."""

    def covers(self, table: str) -> bool:
        """Return whether the bucket includes a table."""
        return not self.tables or table in self.tables


@dataclass(frozen=True, slots=True)
class ClaimFilter:
    """One condition on one claim of a token."""

    claim: Claim
    op: str
    value: Operand


@dataclass(frozen=True, slots=True)
class Omission:
    """Columns that are left out of the rows of some tables."""

    columns: frozenset[str]
    tables: frozenset[str] = frozenset()
    """Empty means all tables."""
    unless: tuple[ClaimFilter, ...] = ()
    """A client that passes all of these is sent the columns; if empty, no client is."""


@dataclass(frozen=True, slots=True)
class SyncRules:
    """All buckets and omissions of a gateway."""

    version: int = 1
    buckets: tuple[Bucket, ...] = ()
    omit: tuple[Omission, ...] = ()

    def covering(self, table: str) -> tuple[Bucket, ...]:
        """Return the buckets that include a table."""
        return tuple(bucket for bucket in self.buckets if bucket.covers(table))

    def tables(self) -> set[str]:
        """Return the tables that buckets and omissions name."""
        named = [bucket.tables for bucket in self.buckets] + [each.tables for each in self.omit]
        return set().union(*named)

    def columns(self, table: str) -> frozenset[str]:
        """Return the columns of a table that decide on the visibility of its rows."""
        return frozenset(item.column for bucket in self.covering(table) for item in bucket.filters)

    def write_filters(self, table: str) -> list[tuple[Filter, ...]]:
        """Return the ``write`` filters of a table, by bucket; empty if none restrict it."""
        return [bucket.write for bucket in self.covering(table) if bucket.write is not None]

    def writers(self, table: str) -> str:
        """Return who may write the rows of a table: one of `WRITERS`."""
        filters = self.write_filters(table)
        if not self.buckets or () in filters:
            return "anyone"
        return "filtered" if filters else "seen"

    def write_columns(self, table: str) -> frozenset[str]:
        """Return the columns of a table that its ``write`` filters read."""
        return frozenset(item.column for filters in self.write_filters(table) for item in filters)

    def claims(self) -> frozenset[Claim]:
        """Return the claims to which any part of the rules refers."""
        conditions = [item for each in self.omit for item in each.unless]
        filters = [item for bucket in self.buckets for item in _filters(bucket)]
        values = [item.value for item in filters] + [item.value for item in conditions]
        operands = [value for value in values if isinstance(value, Claim)]
        return frozenset([*operands, *(item.claim for item in conditions)])


NO_RULES: Final = SyncRules()
"""Rules by which everything is visible and may be written."""


def _filters(bucket: Bucket) -> Iterable[Filter]:
    yield from bucket.filters
    yield from bucket.write or ()


def rules_from_stored(body: Mapping[str, Any]) -> SyncRules:
    """Read what `rules_to_json` wrote, in any release; see `lakesync.core.stored`.

    A filter with an unknown operator matches nothing; a condition of claims with one, no client.
    """
    buckets = tuple(
        Bucket(
            item["name"],
            frozenset(item["tables"]),
            tuple(map(_stored_filter, item["filters"])),
            tuple(map(_stored_filter, item["write"])) if "write" in item else None,
        )
        for item in body["buckets"]
    )
    return SyncRules(body["version"], buckets, tuple(map(_stored_omission, body.get("omit", ()))))


def _stored_filter(item: Mapping[str, Any]) -> Filter:
    return Filter(item["column"], item["op"], _stored_operand(item))


def _stored_omission(item: Mapping[str, Any]) -> Omission:
    unless = tuple(
        ClaimFilter(claim_of(each["claim"]), each["op"], _stored_operand(each))
        for each in item.get("except", ())
    )
    return Omission(frozenset(item["columns"]), frozenset(item["tables"]), unless)


def _stored_operand(item: Mapping[str, Any]) -> Operand:
    value: Any = item["value"]
    if item["op"] not in OPERATORS:
        return ()
    if isinstance(value, list):
        return tuple(value)
    if isinstance(value, str) and value.startswith(CLAIM_PREFIX):
        return claim_of(value.removeprefix(CLAIM_PREFIX))
    return value  # type: ignore[no-any-return]  # a literal: it was checked when it came in


def claim_of(path: str) -> Claim:
    """Return a claim by its dotted path."""
    return Claim(tuple(path.split(".")))


def rules_to_json(rules: SyncRules) -> dict[str, Any]:
    """Write rules as plain JSON values, in the form in which they can be saved again."""
    omit = {"omit": [*map(_omission_to_json, rules.omit)]} if rules.omit else {}
    return {
        "version": rules.version,
        "buckets": [
            {
                "name": bucket.name,
                "tables": sorted(bucket.tables),
                "filters": [_filter_to_json(item) for item in bucket.filters],
            }
            | ({} if bucket.write is None else {"write": [*map(_filter_to_json, bucket.write)]})
            for bucket in rules.buckets
        ],
    } | omit


def _filter_to_json(item: Filter) -> dict[str, Any]:
    return {"column": item.column, "op": item.op, "value": _operand_to_json(item.value)}


def _omission_to_json(item: Omission) -> dict[str, Any]:
    unless = [
        {"claim": ".".join(each.claim.path), "op": each.op, "value": _operand_to_json(each.value)}
        for each in item.unless
    ]
    named = {"tables": sorted(item.tables), "columns": sorted(item.columns)}
    return named | ({"except": unless} if unless else {})


def _operand_to_json(value: Operand) -> Any:
    if isinstance(value, Claim):
        return CLAIM_PREFIX + ".".join(value.path)
    return list(value) if isinstance(value, tuple) else value
