"""Sync rules as JSON: read strictly, every fault reported at once, each with its path.

Rules are checked against the registered schemas when they are saved. A table, column or operator
that does not exist, or an impossible comparison, is refused then, so that no client meets it. In a
gateway that is not strict, rules may name tables without a schema; this gives a warning.
Law V3: ``docs/spec/visibility.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeGuard

from lakesync.core.names import first_spellings, folded, is_identifier, is_table_name
from lakesync.core.rules import (
    BUCKETS_MAX,
    CLAIM_PREFIX,
    FILTERS_MAX,
    OMISSIONS_MAX,
    OMITTED_COLUMNS_MAX,
    OPERATORS,
    ORDERED,
    RULE_COLUMNS_MAX,
    VALUES_MAX,
    Bucket,
    Claim,
    ClaimFilter,
    Filter,
    Omission,
    SyncRules,
    instant,
    is_operand,
    number,
)
from lakesync.core.wording import plural
from lakesync.errors import Fault, RulesRefused

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from lakesync.core.rules import Operand
    from lakesync.core.schema import TableSchema

# --- checks against schemas -----------------------------------------------------------------------


_NUMBERS: Final = ("number", "integer", "decimal")
_INSTANTS: Final = ("timestamp", "date")
_UNORDERED: Final = ("boolean", "bytes", "null")
"""Column types without an order that a filter could use."""


def faults_of(
    item: Filter, path: str, tables: list[str], schemas: Mapping[str, TableSchema]
) -> tuple[list[Fault], list[Fault]]:
    """Return why a filter cannot be evaluated on tables with a schema, and which lack its column.

    A filter of all tables may name a column that only some of them have.

    Args:
        item: the filter.
        path: its path in the rules.
        tables: the tables of its bucket; none means all.
        schemas: every registered table.
    """
    known = {
        table: {column.name: column.type for column in schemas[table].columns}
        for table in (tables or schemas)
        if table in schemas
    }
    having = [table for table in known if item.column in known[table]]
    at = f"{path}.column"
    missing = [Fault(at, f"table {table} has no column {item.column}")
               for table in sorted(known.keys() - set(having)) if tables]  # fmt: skip
    if known and not having and not tables:
        missing = [Fault(at, f"no table with a schema has a column {item.column}")]
    kinds = sorted({known[table][item.column].partition("(")[0] for table in having})
    return [
        Fault(path, message) for kind in kinds if (message := _incomparable(item, kind))
    ], missing


def omission_faults(
    column: str, at: str, tables: list[str], schemas: Mapping[str, TableSchema]
) -> tuple[list[Fault], list[Fault]]:
    """Return why a column cannot be left out of tables with a schema, and which tables lack it.

    Args:
        column: the column.
        at: its path in the rules.
        tables: the tables of the omission; none means all.
        schemas: every registered table.
    """
    known = [schemas[table] for table in sorted(tables or schemas) if table in schemas]
    lacking = [each.table for each in known if folded(column) not in _names_of(each)]
    missing = [Fault(at, f"table {table} has no column {column}") for table in lacking if tables]
    if known and len(lacking) == len(known) and not tables:
        missing = [Fault(at, f"no table with a schema has a column {column}")]
    of_keys = [each.table for each in known if folded(column) in map(folded, each.primary_key)]
    faults = [
        Fault(at, f"column {column} is of the primary key of table {table}, by which its rows are "
                  "known: it cannot be left out")
        for table in of_keys
    ]  # fmt: skip
    return faults, missing


def _names_of(schema: TableSchema) -> set[str]:
    return {folded(column.name) for column in schema.columns}


def _incomparable(item: Filter, kind: str) -> str:
    """Return why a column of a type cannot be compared so; empty if it can."""
    if kind == "json":
        return f"column {item.column} is json, which no filter can compare"
    if item.op in ORDERED and kind in _UNORDERED:
        return f"column {item.column} is {kind}, which has no order for {item.op}"
    if isinstance(item.value, Claim):
        return ""  # only a token shows a claim's type; one that cannot be compared matches nothing
    values = item.value if isinstance(item.value, tuple) else (item.value,)
    for value in values:
        text = value if isinstance(value, str) else repr(value).lower()
        if kind in _NUMBERS and (isinstance(value, bool) or number(text) is None):
            return f"column {item.column} is {kind}, and {text[:40]!r} is not a number"
        if kind in _INSTANTS and instant(text) is None:
            return f"column {item.column} is {kind}, and {text[:40]!r} is no ISO 8601 {kind}"
        if kind == "boolean" and text not in {"true", "false"}:
            return f"column {item.column} is boolean, and {text[:40]!r} is not"
    return ""


# --- objects, lists, names and values -------------------------------------------------------------


def is_text(value: object) -> TypeGuard[str]:
    """Return whether a value is text that can be stored: not empty, no half surrogate pairs."""
    return isinstance(value, str) and bool(value) and is_operand(value)


class Reading:
    """Reads parts of rules, and continues after a fault."""

    def __init__(
        self, schemas: Mapping[str, TableSchema], others: Iterable[str], *, strict: bool
    ) -> None:
        self.schemas = schemas
        self._spellings = first_spellings([*schemas, *others])
        self.strict = strict
        self.faults: list[Fault] = []
        self.warnings: list[Fault] = []

    def fault(self, path: str, message: str) -> None:
        """Note a fault."""
        self.faults.append(Fault(path, message))

    def note(self, of_column: tuple[list[Fault], list[Fault]], tables: list[str]) -> None:
        """Note the faults of a column, and the tables that lack it; an empty list means all tables.

        A table without a schema may have a column that no table with one has.
        """
        faults, missing = of_column
        self.faults += faults
        (self.faults if tables or self.strict else self.warnings).extend(missing)

    def tables(self, value: object, path: str) -> list[str]:
        """Read a list of tables, with their spellings as given."""
        tables = []
        for place, table in enumerate(self.items(value, path, len(self.schemas) + BUCKETS_MAX)):
            at = f"{path}[{place}]"
            if not isinstance(table, str) or not is_table_name(table):
                self.fault(at, "a table is named by a letter or _, then letters, digits or _")
            elif (first := self._spellings.get(folded(table), table)) != table:
                self.fault(at, f"the table {table} is spelled {first}")
            elif table not in self.schemas and self.strict:
                self.fault(at, f"no table {table} is registered; register its schema first")
            else:
                if table not in self.schemas:
                    message = f"the table {table} has no schema: its columns are not checked"
                    self.warnings.append(Fault(at, message))
                tables.append(table)
        return tables

    def comparison(self, fields: Mapping[str, Any], path: str) -> tuple[str, Operand] | None:
        """Read ``op`` and ``value`` of a condition; None if there is a fault in them."""
        op, before = fields.get("op"), len(self.faults)
        if "op" in fields and op not in OPERATORS:
            self.fault(f"{path}.op", f"op must be one of {', '.join(OPERATORS)}")
        value = self._operand(fields.get("value"), f"{path}.value") if "value" in fields else None
        if len(self.faults) > before or op is None or value is None:
            return None
        if isinstance(value, tuple) and op in ORDERED:
            self.fault(f"{path}.value", f"{op} compares with one value, not with a list")
            return None
        return str(op), value

    def claim(self, path_of_claim: object, path: str) -> Claim | None:
        """Read a claim by its dotted path."""
        names = path_of_claim.split(".") if isinstance(path_of_claim, str) else [""]
        if all(map(is_text, names)):
            return Claim(tuple(names))
        self.fault(path, "a claim is named as the token has it, nested ones by a dotted path")
        return None

    def _operand(self, value: object, path: str) -> Operand | None:
        if isinstance(value, list):
            read = [self._literal(item, f"{path}[{place}]")
                    for place, item in enumerate(self.items(value, path, VALUES_MAX))]  # fmt: skip
            if not value:
                self.fault(path, "a list of values must not be empty")
            return tuple(item for item in read if item is not None)
        if isinstance(value, str) and value.startswith(CLAIM_PREFIX):
            return self.claim(value.removeprefix(CLAIM_PREFIX), path)
        return self._literal(value, path)

    def _literal(self, value: object, path: str) -> str | int | float | bool | None:
        if isinstance(value, str | int | float) and value != "" and is_operand(value):
            return value
        self.fault(path, "a value is text that is not empty, a number that a double holds, true or "
                   "false")  # fmt: skip
        return None

    def fields(
        self, value: object, path: str, allowed: set[str], required: set[str]
    ) -> dict[str, Any]:
        """Read an object."""
        if not isinstance(value, dict):
            self.fault(path or "body", "must be an object")
            return {}
        at = f"{path}." if path else ""
        for name in sorted(map(str, value.keys() - allowed)):
            self.fault(f"{at}{name[:64]}", "there is no such field")
        for name in sorted(required - value.keys()):
            self.fault(f"{at}{name}", "is missing")
        return value

    def items(self, value: object, path: str, length_max: int) -> list[Any]:
        """Read a list."""
        if not isinstance(value, list):
            self.fault(path, "must be a list")
            return []
        if len(value) > length_max:
            self.fault(path, f"holds {len(value)}; at most {length_max} are taken")
        return value[:length_max]


# --- rules ----------------------------------------------------------------------------------------


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
