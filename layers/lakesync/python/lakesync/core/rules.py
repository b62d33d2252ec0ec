"""Sync rules: which rows a client may see and write, and how their filters compare values.

Rules are declared once for a gateway. They are buckets. A bucket names tables (none: all of them)
and filters. A row is in a bucket if it passes all its filters, and is visible if it is in any
bucket. Without buckets every row is visible. A client may write the rows that it sees, and new
rows; ``write`` filters of a table's buckets replace this. Besides buckets, omissions name columns
that are left out of the rows, except for clients with certain token claims.
Laws V1-V3 and V12: ``docs/spec/visibility.md``.

How a column's value is compared with a filter's operand. A scalar is a boolean, a number, an
instant or another text. A text that has the form of a JSON number, or of an instant in ISO 8601,
counts as a number or an instant. Numbers are compared digit by digit and instants to the
nanosecond, so nothing is rounded and nothing is too large.

- Equality holds between equal numbers (``42`` and an operand ``"42"``), equal booleans, equal
  texts, and texts that name the same instant. A text that names a number equals no other text: the
  tenant ``"1e3"`` is not the tenant ``"1000"``.
- An order exists between two numbers, between two instants (in UTC where no offset is given), and
  between two other texts (by code point). Values of different kinds are unequal, and neither is
  less; booleans have no order.
- A null, a missing column, an object, an array and any value longer than `RULE_VALUE_BYTES_MAX`
  match nothing, whatever the operator: an unknown value is never shown.

No value makes a comparison fail, and the cost is bounded by the value's length. Law V2:
``docs/spec/visibility.md``.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import date
from functools import lru_cache
from operator import ge, gt, le, lt
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from lakesync.core.delta import NULL, canonical
from lakesync.errors import ValidationFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from lakesync.core.delta import CanonicalJson

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
    """Read what `rules_to_json` wrote, in any release; see `lakesync.core.config`.

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


# --- comparing a value with an operand ------------------------------------------------------------


Condition: TypeAlias = "Callable[[CanonicalJson | None], bool]"
"""True if a column's value passes; None stands for a missing column."""
Number: TypeAlias = tuple[int, int, str]
"""A decimal number in comparable form: its sign, its power of ten, its digits."""

RULE_VALUE_BYTES_MAX: Final = 256
"""A longer value matches nothing: the columns that filters read are kept beside each delta in the
log. A longer text is never a number or an instant."""
_ORDERS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "gt": gt, "lt": lt, "gte": ge, "lte": le,
}  # fmt: skip
_QUOTE: Final = ord('"')
_WORDS: Final = (b"true", b"false")
_NUMBER = re.compile(r"(-?)(0|[1-9][0-9]*)(?:\.([0-9]+))?(?:[eE]([+-]?[0-9]+))?")
_COMPLEMENT: Final = str.maketrans("0123456789", "9876543210")
_INSTANT = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})"
    r"(?:[T ]([01][0-9]|2[0-3]):([0-5][0-9])(?::([0-5][0-9])(?:\.([0-9]{1,9}))?)?"
    r"(?:Z|([+-])([01][0-9]|2[0-3]):([0-5][0-9]))?)?"
)
_NS: Final = 1_000_000_000
_TEXTS_REMEMBERED: Final = 4_096
"""Texts whose kind is cached: the rows of one page mostly contain the same few."""


def never(value: CanonicalJson | None) -> bool:
    """Match nothing."""
    del value
    return False


def condition(op: str, operands: Sequence[Literal]) -> Condition:
    """Return the test of a filter whose claims are resolved.

    Args:
        op: one of `lakesync.core.rules.OPERATORS`.
        operands: what the value is compared with. If a claim is missing there are none, and nothing
            passes. Several operands are alternatives for ``eq`` and ``in``, are all excluded by
            ``neq``, and match nothing for an order.
    """
    if not operands:
        return never
    if op in _ORDERS:
        return _ordered(_ORDERS[op], operands[0]) if len(operands) == 1 else never
    equal = _equal(operands)
    return _differs(equal) if op == "neq" else equal


def _equal(operands: Sequence[Literal]) -> Condition:
    """Compare canonical bytes; only two texts of one instant are also equal."""
    forms = {form for operand in operands for form in _forms(operand)}
    known = frozenset(form for form in forms if len(form) <= RULE_VALUE_BYTES_MAX)
    instants = frozenset(at for operand in operands if (at := instant(_text(operand))) is not None)
    if not instants:
        return known.__contains__

    def equal(value: CanonicalJson | None) -> bool:
        if value in known:
            return True
        return value is not None and value[0] == _QUOTE and instant(text_of(value)) in instants

    return equal


def _differs(equal: Condition) -> Condition:
    def differs(value: CanonicalJson | None) -> bool:
        return is_scalar(value) and not equal(value)

    return differs


def _ordered(order: Callable[[Any, Any], bool], operand: Literal) -> Condition:
    if isinstance(operand, bool):
        return never
    kind, key = _sort_key(_text(operand))

    def ordered(value: CanonicalJson | None) -> bool:
        if value is None or not is_scalar(value) or value in _WORDS:
            return False
        its_kind, its_key = _sort_key(text_of(value))
        # A number is ordered against a text only if that text is a number.
        return its_kind is kind and order(its_key, key)

    return ordered


def is_operand(value: object) -> bool:
    """Return whether a column could hold a scalar; half a surrogate pair or 2^53 + 1 it could not.

    Rules with such a literal are refused. A claim with such a value comes from the token's issuer,
    so it matches nothing, as if it were missing; only a large integer is taken for its text.
    """
    if not isinstance(value, str | int | float):
        return False
    try:
        canonical(value)
    except ValidationFailed:
        return False
    return True


def is_scalar(value: CanonicalJson | None) -> bool:
    """Return whether a value is text, a number or a boolean, and not too long to be compared."""
    return (
        value is not None
        and value != NULL
        and value[:1] not in {b"[", b"{"}
        and len(value) <= RULE_VALUE_BYTES_MAX
    )


def _forms(operand: Literal) -> list[CanonicalJson]:
    """Return every canonical value that equals an operand: as text, as number, as boolean."""
    text = _text(operand)
    forms = [canonical(text)]
    if text.encode() in _WORDS:
        forms.append(text.encode())
    exact = number(text)
    if exact is not None:
        # A double that is only close is another number: 2^53 is not the tenant 2^53 + 1.
        near = float(text)
        if near - near == 0 and number(canonical(near).decode()) == exact:
            forms.append(canonical(near))
    return forms


def _text(operand: Literal) -> str:
    return operand if isinstance(operand, str) else canonical(operand).decode()


def text_of(value: CanonicalJson) -> str:
    """Return the text of a text value, or the written form of a number."""
    if value[0] != _QUOTE:
        return value.decode()
    if b"\\" in value:
        text: str = json.loads(value)
        return text
    return value[1:-1].decode()


@lru_cache(_TEXTS_REMEMBERED)
def _sort_key(text: str) -> tuple[object, Any]:
    """Return the kind of a text and its sort key among others of its kind."""
    exact = number(text)
    if exact is not None:
        return number, exact
    at = instant(text)
    return (str, text) if at is None else (instant, at)


def number(text: str) -> Number | None:
    """Return a text's number in comparable form: equal numbers are equal, a lesser one is less."""
    match = _NUMBER.fullmatch(text) if len(text) <= RULE_VALUE_BYTES_MAX else None
    if match is None:
        return None
    minus, whole, fraction, power = match.groups(default="")
    digits = (whole + fraction).lstrip("0")
    if not digits.strip("0"):
        return (0, 0, "")
    # The number is 0.DIGITS times ten to this power.
    exponent = int(power or 0) + len(whole) - (len(whole + fraction) - len(digits))
    digits = digits.rstrip("0")
    if not minus:
        return (1, exponent, digits)
    # Of two negative numbers with the same leading digits, the one with more digits is less.
    return (-1, -exponent, digits.translate(_COMPLEMENT) + ":")


@lru_cache(_TEXTS_REMEMBERED)
def instant(text: str) -> int | None:
    """Return the instant of a text, if it is one, in nanoseconds; in UTC without an offset."""
    match = _INSTANT.fullmatch(text)
    if match is None:
        return None
    year, month, day, hour, minute, second, fraction, sign, *offset = match.groups(default="0")
    try:
        days = date(int(year), int(month), int(day)).toordinal()
    except ValueError:  # no such day exists
        return None
    minutes = (days * 24 + int(hour)) * 60 + int(minute)
    ahead = int(offset[0]) * 60 + int(offset[1])
    minutes += ahead if sign == "-" else -ahead
    return (minutes * 60 + int(second)) * _NS + int(fraction.ljust(9, "0"))
