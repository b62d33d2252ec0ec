"""Sync rules as JSON: read strictly, every fault reported at once, each with its path.

Rules are checked against the registered schemas: a table, column or operator that does not exist,
or a comparison that cannot be made, is refused when the rules are saved, not met by a client.
In a gateway that is not strict they may name tables without a schema; that is a warning.
Law V3: ``docs/spec/visibility.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeGuard

from lakesync.core.comparing import is_operand
from lakesync.core.delta import is_identifier
from lakesync.core.names import first_spellings, folded
from lakesync.core.rules import (
    BUCKETS_MAX,
    CLAIM_PREFIX,
    FILTERS_MAX,
    OPERATORS,
    ORDERED,
    RULE_COLUMNS_MAX,
    VALUES_MAX,
    Bucket,
    Claim,
    Filter,
    SyncRules,
)
from lakesync.core.rules_types import faults_of
from lakesync.errors import Fault, RulesRefused

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from lakesync.core.rules import Operand
    from lakesync.core.schema import TableSchema

_BUCKET_NAME_CHARACTERS_MAX: Final = 64
_FAULTS_SHOWN_MAX: Final = 3
"""Faults in the sentence; all of them are in the answer."""


def rules_from_json(body: object, schemas: Mapping[str, TableSchema]) -> SyncRules:
    """Read rules that name nothing but what has a schema; see `read_rules`.

    Raises:
        RulesRefused: they are malformed, or do not fit the schemas; names every fault.
    """
    rules, _ = read_rules(body, schemas, strict=True)
    return rules


def read_rules(
    body: object, schemas: Mapping[str, TableSchema], others: Iterable[str] = (), *, strict: bool
) -> tuple[SyncRules, list[Fault]]:
    """Read rules as ``POST /admin/sync-rules`` takes them, with warnings.

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
            f"{len(reader.faults)} faults in the sync rules: {listed}", faults=reader.faults
        )
    return rules, reader.warnings


def _is_text(value: object) -> TypeGuard[str]:
    """Tell whether a value is text that can be stored: not empty, and no half surrogate pairs."""
    return isinstance(value, str) and bool(value) and is_operand(value)


class _Reader:
    """Reads rules, and goes on after a fault."""

    def __init__(
        self, schemas: Mapping[str, TableSchema], others: Iterable[str], *, strict: bool
    ) -> None:
        self._schemas = schemas
        self._spellings = first_spellings([*schemas, *others])
        self._strict = strict
        self.faults: list[Fault] = []
        self.warnings: list[Fault] = []

    def fault(self, path: str, message: str) -> None:
        self.faults.append(Fault(path, message))

    def rules(self, body: object) -> SyncRules:
        fields = self._object(body, "", {"version", "buckets"}, {"buckets"})
        version = fields.get("version", 1)
        if type(version) is not int or version < 1:
            self.fault("version", "version must be a positive integer")
            version = 1
        buckets = self._list(fields.get("buckets", []), "buckets", BUCKETS_MAX)
        read = [self._bucket(item, f"buckets[{place}]") for place, item in enumerate(buckets)]
        names = [bucket.name for bucket in read]
        for place, name in enumerate(names):
            if name in names[:place]:
                self.fault(f"buckets[{place}].name", f"another bucket is named {name!r} already")
        rules = SyncRules(version, tuple(read))
        for table in sorted(rules.tables() | self._schemas.keys()):
            columns = rules.columns(table) | rules.write_columns(table)
            if len(columns) > RULE_COLUMNS_MAX:
                self.fault("buckets", f"filters look at {len(columns)} columns of table {table}; "
                           f"at most {RULE_COLUMNS_MAX} are kept with each change")  # fmt: skip
        return rules

    def _bucket(self, item: object, path: str) -> Bucket:
        allowed = {"name", "tables", "filters", "write"}
        fields = self._object(item, path, allowed, {"name", "tables", "filters"})
        name = fields.get("name")
        if not _is_text(name) or len(name) > _BUCKET_NAME_CHARACTERS_MAX:
            message = f"name must be text of 1 to {_BUCKET_NAME_CHARACTERS_MAX} characters"
            self.fault(f"{path}.name", message)
            name = ""
        tables = self._tables(fields.get("tables", []), f"{path}.tables")
        filters = self._filters(fields.get("filters", []), f"{path}.filters", tables)
        write = None
        if "write" in fields:
            write = self._filters(fields["write"], f"{path}.write", tables)
        return Bucket(name, frozenset(tables), filters, write)

    def _tables(self, value: object, path: str) -> list[str]:
        tables = []
        for place, table in enumerate(self._list(value, path, len(self._schemas) + BUCKETS_MAX)):
            at = f"{path}[{place}]"
            if not isinstance(table, str) or not is_identifier(table):
                self.fault(at, "a table is named by a letter or _, then letters, digits or _")
            elif (first := self._spellings.get(folded(table), table)) != table:
                self.fault(at, f"the table {table} is spelled {first}")
            elif table not in self._schemas and self._strict:
                self.fault(at, f"no table {table} is registered; register its schema first")
            else:
                if table not in self._schemas:
                    message = f"the table {table} has no schema: its columns are not checked"
                    self.warnings.append(Fault(at, message))
                tables.append(table)
        return tables

    def _filters(self, value: object, path: str, tables: list[str]) -> tuple[Filter, ...]:
        items = self._list(value, path, FILTERS_MAX)
        read = [self._filter(item, f"{path}[{place}]", tables) for place, item in enumerate(items)]
        return tuple(item for item in read if item is not None)

    def _filter(self, item: object, path: str, tables: list[str]) -> Filter | None:
        names = {"column", "op", "value"}
        before = len(self.faults)
        fields = self._object(item, path, names, names)
        column, op = fields.get("column"), fields.get("op")
        if "column" in fields and (not isinstance(column, str) or not is_identifier(column)):
            message = "a column is named by a letter or _, then letters, digits or _"
            self.fault(f"{path}.column", message)
        if "op" in fields and op not in OPERATORS:
            self.fault(f"{path}.op", f"op must be one of {', '.join(OPERATORS)}")
        value = self._operand(fields.get("value"), f"{path}.value") if "value" in fields else None
        if len(self.faults) > before or value is None:
            return None
        if isinstance(value, tuple) and op in ORDERED:
            self.fault(f"{path}.value", f"{op} compares with one value, not with a list")
            return None
        condition = Filter(str(column), str(op), value)
        faults, missing = faults_of(condition, path, tables, self._schemas)
        self.faults += faults
        # A table without a schema may have a column that no table with one has.
        (self.faults if tables or self._strict else self.warnings).extend(missing)
        return condition

    def _operand(self, value: object, path: str) -> Operand | None:
        if isinstance(value, list):
            read = [self._literal(item, f"{path}[{place}]")
                    for place, item in enumerate(self._list(value, path, VALUES_MAX))]  # fmt: skip
            if not value:
                self.fault(path, "a list of values must not be empty")
            return tuple(item for item in read if item is not None)
        if isinstance(value, str) and value.startswith(CLAIM_PREFIX):
            names = tuple(value.removeprefix(CLAIM_PREFIX).split("."))
            if all(map(_is_text, names)):
                return Claim(names)
            self.fault(path, "jwt: is followed by a claim's name, nested ones by a dotted path")
            return None
        return self._literal(value, path)

    def _literal(self, value: object, path: str) -> str | int | float | bool | None:
        if isinstance(value, str | int | float) and value != "" and is_operand(value):
            return value
        self.fault(path, "a value is text that is not empty, a number that a double holds, true or "
                   "false")  # fmt: skip
        return None

    def _object(
        self, value: object, path: str, allowed: set[str], required: set[str]
    ) -> dict[str, Any]:
        if not isinstance(value, dict):
            self.fault(path or "body", "must be an object")
            return {}
        at = f"{path}." if path else ""
        for name in sorted(map(str, value.keys() - allowed)):
            self.fault(f"{at}{name[:64]}", "there is no such field")
        for name in sorted(required - value.keys()):
            self.fault(f"{at}{name}", "is missing")
        return value

    def _list(self, value: object, path: str, length_max: int) -> list[Any]:
        if not isinstance(value, list):
            self.fault(path, "must be a list")
            return []
        if len(value) > length_max:
            self.fault(path, f"holds {len(value)}; at most {length_max} are taken")
        return value[:length_max]
