"""Sync rules as JSON: read strictly, every fault reported at once, each with its path.

Rules are checked against the registered schemas when they are saved. A table, column or operator
that does not exist, or an impossible comparison, is refused then, so that no client meets it. In a
gateway that is not strict, rules may name tables without a schema; this gives a warning.
Law V3: ``docs/spec/visibility.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lakesync.core.names import is_identifier
from lakesync.core.plural import plural
from lakesync.core.rules import (
    BUCKETS_MAX,
    FILTERS_MAX,
    OMISSIONS_MAX,
    OMITTED_COLUMNS_MAX,
    RULE_COLUMNS_MAX,
    Bucket,
    ClaimFilter,
    Filter,
    Omission,
    SyncRules,
)
from lakesync.core.rules_reading import Reading, is_text
from lakesync.core.rules_types import faults_of, omission_faults
from lakesync.errors import RulesRefused

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from lakesync.core.schema import TableSchema
    from lakesync.errors import Fault

_BUCKET_NAME_CHARACTERS_MAX: Final = 64
_FAULTS_SHOWN_MAX: Final = 3
"""Faults in the error's sentence; the answer contains all of them."""
_COLUMN_RULE: Final = "a column is named by a letter or _, then letters, digits or _"


def rules_from_json(body: object, schemas: Mapping[str, TableSchema]) -> SyncRules:
    """Read rules that name only tables with a schema; see `read_rules`.

    Raises:
        RulesRefused: they are malformed, or do not fit the schemas; names every fault.
    """
    rules, _ = read_rules(body, schemas, strict=True)
    return rules


def read_rules(
    body: object, schemas: Mapping[str, TableSchema], others: Iterable[str] = (), *, strict: bool
) -> tuple[SyncRules, list[Fault]]:
    """Read rules as ``POST /admin/sync-rules`` accepts them, with warnings.

    Args:
        body: the rules.
        schemas: every registered schema, by table.
        others: the tables that have none.
        strict: rules may name no table without a schema.

    Raises:
        RulesRefused: they are malformed, or do not fit the schemas; names every fault.
    """
    reader = _Reader(schemas, others, strict=strict)
    rules = reader.rules(body)
    if reader.faults:
        listed = "; ".join(
            f"{fault.path}: {fault.message}" for fault in reader.faults[:_FAULTS_SHOWN_MAX]
        )
        raise RulesRefused(
            f"{plural(len(reader.faults), 'fault')} in the sync rules: {listed}",
            faults=reader.faults,
        )
    return rules, reader.warnings


class _Reader(Reading):
    """Reads rules, and continues after a fault."""

    def rules(self, body: object) -> SyncRules:
        fields = self.fields(body, "", {"version", "buckets", "omit"}, {"buckets"})
        version = fields.get("version", 1)
        if type(version) is not int or version < 1:
            self.fault("version", "version must be a positive integer")
            version = 1
        buckets = self.items(fields.get("buckets", []), "buckets", BUCKETS_MAX)
        read = [self._bucket(item, f"buckets[{place}]") for place, item in enumerate(buckets)]
        names = [bucket.name for bucket in read]
        for place, name in enumerate(names):
            if name in names[:place]:
                self.fault(f"buckets[{place}].name", f"another bucket is named {name!r} already")
        omitted = self.items(fields.get("omit", []), "omit", OMISSIONS_MAX)
        omit = [self._omission(item, f"omit[{place}]") for place, item in enumerate(omitted)]
        rules = SyncRules(version, tuple(read), tuple(omit))
        for table in sorted(rules.tables() | self.schemas.keys()):
            columns = rules.columns(table) | rules.write_columns(table)
            if len(columns) > RULE_COLUMNS_MAX:
                self.fault("buckets", f"filters look at {len(columns)} columns of table {table}; "
                           f"at most {RULE_COLUMNS_MAX} are kept with each change")  # fmt: skip
        return rules

    def _bucket(self, item: object, path: str) -> Bucket:
        allowed = {"name", "tables", "filters", "write"}
        fields = self.fields(item, path, allowed, {"name", "tables", "filters"})
        name = fields.get("name")
        if not is_text(name) or len(name) > _BUCKET_NAME_CHARACTERS_MAX:
            message = f"name must be text of 1 to {_BUCKET_NAME_CHARACTERS_MAX} characters"
            self.fault(f"{path}.name", message)
            name = ""
        tables = self.tables(fields.get("tables", []), f"{path}.tables")
        filters = self._filters(fields.get("filters", []), f"{path}.filters", tables)
        write = None
        if "write" in fields:
            write = self._filters(fields["write"], f"{path}.write", tables)
        return Bucket(name, frozenset(tables), filters, write)

    def _filters(self, value: object, path: str, tables: list[str]) -> tuple[Filter, ...]:
        items = self.items(value, path, FILTERS_MAX)
        read = [self._filter(item, f"{path}[{place}]", tables) for place, item in enumerate(items)]
        return tuple(item for item in read if item is not None)

    def _filter(self, item: object, path: str, tables: list[str]) -> Filter | None:
        names = {"column", "op", "value"}
        before = len(self.faults)
        fields = self.fields(item, path, names, names)
        column = fields.get("column")
        if "column" in fields and (not isinstance(column, str) or not is_identifier(column)):
            self.fault(f"{path}.column", _COLUMN_RULE)
        compared = self.comparison(fields, path)
        if len(self.faults) > before or compared is None:
            return None
        condition = Filter(str(column), *compared)
        self.note(faults_of(condition, path, tables, self.schemas), tables)
        return condition

    def _omission(self, item: object, path: str) -> Omission:
        fields = self.fields(item, path, {"tables", "columns", "except"}, {"tables", "columns"})
        tables = self.tables(fields.get("tables", []), f"{path}.tables")
        named = self.items(fields.get("columns", []), f"{path}.columns", OMITTED_COLUMNS_MAX)
        if not named and "columns" in fields:
            self.fault(f"{path}.columns", "name at least one column")
        columns = []
        for place, column in enumerate(named):
            at = f"{path}.columns[{place}]"
            if not isinstance(column, str) or not is_identifier(column):
                self.fault(at, _COLUMN_RULE)
                continue
            columns.append(column)
            self.note(omission_faults(column, at, tables, self.schemas), tables)
        listed = self.items(fields.get("except", []), f"{path}.except", FILTERS_MAX)
        unless = [self._claim_filter(each, f"{path}.except[{n}]") for n, each in enumerate(listed)]
        some = tuple([each for each in unless if each is not None])
        return Omission(frozenset(columns), frozenset(tables), some)

    def _claim_filter(self, item: object, path: str) -> ClaimFilter | None:
        names = {"claim", "op", "value"}
        fields = self.fields(item, path, names, names)
        claim = self.claim(fields["claim"], f"{path}.claim") if "claim" in fields else None
        compared = self.comparison(fields, path)
        return ClaimFilter(claim, *compared) if claim and compared else None
