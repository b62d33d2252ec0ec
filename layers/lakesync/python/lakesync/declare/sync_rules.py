"""Sync rules, as administrators declare them. Law V3: ``docs/spec/visibility.md``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

from pydantic import Field

from lakesync.core.rule_checks import check_rules
from lakesync.core.rules import (
    BUCKETS_MAX,
    CLAIM_PREFIX,
    FILTERS_MAX,
    OMISSIONS_MAX,
    OMITTED_COLUMNS_MAX,
    OPERATORS,
    VALUES_MAX,
    Bucket,
    Claim,
    ClaimFilter,
    Filter,
    Omission,
    SyncRules,
    is_operand,
)
from lakesync.declare import (
    COLUMN_NAME,
    TABLE_NAME,
    Declaration,
    Form,
    Several,
    one_of,
    read,
    refuse,
    text_form,
)
from lakesync.errors import Fault, RulesRefused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from lakesync.core.config import GatewayConfig
    from lakesync.core.rules import Operand
    from lakesync.core.schema import TableSchema

_BUCKET_NAME_CHARACTERS_MAX: Final = 64
_LITERAL: Final = {"type": ["string", "number", "boolean"], "minLength": 1}
_VALUE_RULE: Final = (
    "a value is text that is not empty, a number that a double holds, true or false"
)
_CLAIM_RULE: Final = "a claim is named as the token has it, nested ones by a dotted path"
_NO_TABLE: Final = ""
"""What a list of tables holds that could not be read: without it, it would mean all tables."""


def is_text(value: object) -> bool:
    """Return whether a value is text that can be stored: not empty, no half surrogate pairs."""
    return isinstance(value, str) and bool(value) and is_operand(value)


def _claim(value: object) -> Claim:
    names = value.split(".") if isinstance(value, str) else [""]
    if not all(map(is_text, names)):
        raise ValueError(_CLAIM_RULE)
    return Claim(tuple(names))


def _is_literal(value: object) -> bool:
    return isinstance(value, str | int | float) and value != "" and is_operand(value)


def _operand(value: Any) -> Operand:
    if isinstance(value, str) and value.startswith(CLAIM_PREFIX):
        return _claim(value.removeprefix(CLAIM_PREFIX))
    values = value if isinstance(value, list) else [value]
    if not values:
        raise ValueError("a list of values must not be empty")
    if len(values) > VALUES_MAX:
        raise ValueError(f"holds {len(values)}; at most {VALUES_MAX} are taken")
    wrong = [place for place, one in enumerate(values) if not _is_literal(one)]
    if wrong and isinstance(value, list):
        raise Several(*[Fault(f"[{place}]", _VALUE_RULE) for place in wrong])
    if wrong:
        raise ValueError(_VALUE_RULE)
    return tuple(value) if isinstance(value, list) else value


BUCKET_NAME: Final = text_form(
    lambda name: is_text(name) and len(name) <= _BUCKET_NAME_CHARACTERS_MAX,
    f"name must be text of 1 to {_BUCKET_NAME_CHARACTERS_MAX} characters",
    minLength=1,
    maxLength=_BUCKET_NAME_CHARACTERS_MAX,
)
CLAIM: Final = Form(_claim, {"type": "string"})
VALUE: Final = Form(
    _operand,
    {
        "description": "A literal, a list of them, or `jwt:` and a claim's dotted path.",
        "anyOf": [
            _LITERAL,
            {"type": "array", "items": _LITERAL, "minItems": 1, "maxItems": VALUES_MAX},
        ],
    },
)
Tables = Annotated[list[Annotated[str, TABLE_NAME]], Field(description="None: all tables.")]


class _Compared(Declaration):
    op: Annotated[str, one_of(OPERATORS)]
    value: Annotated[Any, VALUE]

    def compared(self) -> tuple[str, Operand]:
        """Return both; empty what could not be read."""
        return self.op or "", () if self.value is None else self.value


class DeclaredFilter(_Compared):
    """One condition on one column."""

    column: Annotated[str, COLUMN_NAME]

    def made(self) -> Filter:
        return Filter(self.column or "", *self.compared())


Filters = Annotated[list[DeclaredFilter], Field(max_length=FILTERS_MAX)]


class DeclaredBucket(Declaration):
    """A set of rows: those of some tables that pass all filters."""

    name: Annotated[str, BUCKET_NAME]
    tables: Tables
    filters: Filters
    write: Filters = Field([])

    def made(self) -> Bucket:
        write = _made(self.write) if "write" in self.model_fields_set else None
        return Bucket(self.name or "", named(self.tables), _made(self.filters), write)


class DeclaredClaimFilter(_Compared):
    """One condition on one claim of a token."""

    claim: Annotated[Any, CLAIM] = Field(
        description="A claim of the token; nested ones by a dotted path."
    )

    def made(self) -> ClaimFilter:
        return ClaimFilter(self.claim or Claim(()), *self.compared())


class DeclaredOmission(Declaration):
    """Columns that are left out of the rows of some tables."""

    tables: Tables
    columns: Annotated[
        list[Annotated[str, COLUMN_NAME]], Field(min_length=1, max_length=OMITTED_COLUMNS_MAX)
    ]
    unless: Annotated[list[DeclaredClaimFilter], Field(max_length=FILTERS_MAX)] = Field(
        default=[],
        alias="except",
        description="Clients that pass all of these receive the columns; empty: nobody.",
    )

    def made(self) -> Omission:
        unless = tuple(one.made() for one in self.unless or ())
        return Omission(frozenset(filter(None, self.columns or ())), named(self.tables), unless)


class DeclaredRules(Declaration):
    """All buckets and omissions of a gateway."""

    version: int = Field(1, ge=1)
    buckets: list[DeclaredBucket] = Field(max_length=BUCKETS_MAX)
    omit: list[DeclaredOmission] = Field(
        default=[],
        max_length=OMISSIONS_MAX,
        description="Columns that are left out of what clients are sent.",
    )


def named(tables: Sequence[str] | None) -> frozenset[str]:
    return frozenset({_NO_TABLE} if tables is None else (one or _NO_TABLE for one in tables))


def _made(filters: Sequence[DeclaredFilter] | None) -> tuple[Filter, ...]:
    return tuple(one.made() for one in filters or ())


def rules_reader(body: object) -> Callable[[GatewayConfig], tuple[SyncRules, list[Fault]]]:
    """Return what reads rules by the configuration of the gateway; see `read_rules`."""
    return lambda config: read_rules(body, config.schemas, config.tables, strict=config.strict)


def read_rules(
    body: object, schemas: Mapping[str, TableSchema], others: Iterable[str] = (), *, strict: bool
) -> tuple[SyncRules, list[Fault]]:
    """Read rules as ``POST /admin/sync-rules`` accepts them, with warnings.

    Args:
        schemas: every registered schema, by table.
        strict: rules may name no table without a schema.

    Raises:
        RulesRefused: they are malformed, or do not fit the schemas; names every fault.
    """
    declared, faults = read(DeclaredRules, body)
    buckets, omit = declared.buckets or [], declared.omit or []
    rules = SyncRules(
        declared.version or 1,
        tuple(each.made() for each in buckets),
        tuple(each.made() for each in omit),
    )
    lists = {f"buckets[{place}].tables": each.tables for place, each in enumerate(buckets)}
    lists |= {f"omit[{place}].tables": each.tables for place, each in enumerate(omit)}
    lists |= {f"omit[{place}].columns": each.columns for place, each in enumerate(omit)}
    unfit, warnings = check_rules(rules, schemas, others, strict=strict, lists=lists)
    refuse(RulesRefused, "sync rules", [*faults, *unfit])
    return rules, warnings
