"""Sync rules: which rows a client may see and write, declared once for a gateway.

Rules are buckets. A bucket names tables (none: all of them) and filters; inside a bucket all
filters hold, across buckets any may. No buckets: every row is visible. A client writes the rows
that it sees, and new ones; ``write`` filters of a table's buckets replace that. Beside buckets,
omissions name columns that are left out of the rows, but for clients with certain token claims.

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
"""Buckets of one gateway: each is evaluated for each delta that it covers."""
FILTERS_MAX: Final = 16
"""Filters of one bucket, those of ``write`` apart."""
RULE_COLUMNS_MAX: Final = 16
"""Columns of one table that filters may look at: they are kept beside each delta in the log."""
OMISSIONS_MAX: Final = 100
"""Omissions of one gateway."""
OMITTED_COLUMNS_MAX: Final = 500
"""Columns of one omission: as many as a row may have."""
VALUES_MAX: Final = 200
"""Values of one ``in``; what needs more is a claim, or a column of the row."""
WRITERS: Final = ("anyone", "filtered", "seen")
"""Who writes a table's rows: anyone any; whoever passes its ``write`` filters; or, without any,
each client those that it sees, and new ones."""

Literal: TypeAlias = str | int | float | bool


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim of the token: nested ones by a dotted path."""

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
    """Rows that belong together: those of some tables that pass all filters."""

    name: str
    tables: frozenset[str] = frozenset()
    """Empty means all tables."""
    filters: tuple[Filter, ...] = ()
    write: tuple[Filter, ...] | None = None
    """What a row must be, before and after, for a client to change it; None says nothing: then
    other buckets do, or a client changes what it sees."""

    def covers(self, table: str) -> bool:
        """Tell whether the bucket speaks of a table."""
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
    """Who passes all of these is sent the columns all the same; none: nobody is."""


@dataclass(frozen=True, slots=True)
class SyncRules:
    """All buckets and omissions of a gateway."""

    version: int = 1
    buckets: tuple[Bucket, ...] = ()
    omit: tuple[Omission, ...] = ()

    def covering(self, table: str) -> tuple[Bucket, ...]:
        """Give the buckets that speak of a table."""
        return tuple(bucket for bucket in self.buckets if bucket.covers(table))

    def tables(self) -> set[str]:
        """Give the tables that buckets and omissions name."""
        named = [bucket.tables for bucket in self.buckets] + [each.tables for each in self.omit]
        return set().union(*named)

    def columns(self, table: str) -> frozenset[str]:
        """Give the columns of a table by which its rows' visibility is decided."""
        return frozenset(item.column for bucket in self.covering(table) for item in bucket.filters)

    def write_filters(self, table: str) -> list[tuple[Filter, ...]]:
        """Give the ``write`` filters of a table, by bucket; none: a client writes what it sees."""
        return [bucket.write for bucket in self.covering(table) if bucket.write is not None]

    def writers(self, table: str) -> str:
        """Say who writes the rows of a table: one of `WRITERS`."""
        filters = self.write_filters(table)
        if not self.buckets or () in filters:
            return "anyone"
        return "filtered" if filters else "seen"

    def write_columns(self, table: str) -> frozenset[str]:
        """Give the columns of a table by which its ``write`` filters decide."""
        return frozenset(item.column for filters in self.write_filters(table) for item in filters)

    def claims(self) -> frozenset[Claim]:
        """Give the claims that anything in them refers to."""
        conditions = [item for each in self.omit for item in each.unless]
        filters = [item for bucket in self.buckets for item in _filters(bucket)]
        values = [item.value for item in filters] + [item.value for item in conditions]
        operands = [value for value in values if isinstance(value, Claim)]
        return frozenset([*operands, *(item.claim for item in conditions)])


NO_RULES: Final = SyncRules()
"""Everything is visible, and may be written."""


def _filters(bucket: Bucket) -> Iterable[Filter]:
    yield from bucket.filters
    yield from bucket.write or ()


def rules_from_stored(body: Mapping[str, Any]) -> SyncRules:
    """Read what `rules_to_json` wrote, in any release; see `lakesync.core.stored`.

    A filter whose operator is not known lets nothing pass, one of claims nobody.
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
    """Give a claim by its dotted path."""
    return Claim(tuple(path.split(".")))


def rules_to_json(rules: SyncRules) -> dict[str, Any]:
    """Write rules as plain JSON values, as they can be put again."""
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
