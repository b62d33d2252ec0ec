"""Whether sync rules fit the registered schemas; every fault has its path.

Rules are checked when they are saved, and again before a schema changes. A table or column that
does not exist, or an impossible comparison, is refused then, so that no client meets it. In a
gateway that is not strict, rules may name tables without a schema; this gives a warning.
Law V3: ``docs/spec/visibility.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lakesync.core.names import first_spellings, folded
from lakesync.core.rules import ORDERED, RULE_COLUMNS_MAX, Claim, instant, number
from lakesync.errors import Fault

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from lakesync.core.rules import Filter, Operand, SyncRules
    from lakesync.core.schema import TableSchema

_NUMBERS: Final = ("number", "integer", "decimal")
_INSTANTS: Final = ("timestamp", "date")
_UNORDERED: Final = ("boolean", "bytes", "null")
"""Column types without an order that a filter could use."""


def check_rules(
    rules: SyncRules,
    schemas: Mapping[str, TableSchema],
    others: Iterable[str] = (),
    *,
    strict: bool,
    lists: Mapping[str, Sequence[str]] | None = None,
) -> tuple[list[Fault], list[Fault]]:
    """Return the faults of rules, and the warnings; empty names and operands are passed over.

    Args:
        rules: the rules.
        schemas: every registered schema, by table.
        others: the tables that have none.
        strict: rules may name no table without a schema.
        lists: by path, the tables or columns in the order in which they were listed; otherwise
            they are in order of name.
    """
    check = _Check(schemas, others, lists or {}, strict=strict)
    names = [bucket.name for bucket in rules.buckets]
    for place, bucket in enumerate(rules.buckets):
        at = f"buckets[{place}]"
        if bucket.name and bucket.name in names[:place]:
            check.fault(f"{at}.name", f"another bucket is named {bucket.name!r} already")
        check.tables(bucket.tables, f"{at}.tables")
        for part, filters in (("filters", bucket.filters), ("write", bucket.write or ())):
            for number_, item in enumerate(filters):
                check.filter(item, f"{at}.{part}[{number_}]", bucket.tables)
    for place, omission in enumerate(rules.omit):
        at = f"omit[{place}]"
        check.tables(omission.tables, f"{at}.tables")
        check.omitted(omission.columns, f"{at}.columns", omission.tables)
        for number_, each in enumerate(omission.unless):
            check.operand(each.op, each.value, f"{at}.except[{number_}].value")
    for table in sorted(rules.tables() | schemas.keys()):
        columns = (rules.columns(table) | rules.write_columns(table)) - {""}
        if len(columns) > RULE_COLUMNS_MAX:
            check.fault("buckets", f"filters look at {len(columns)} columns of table {table}; "
                        f"at most {RULE_COLUMNS_MAX} are kept with each change")  # fmt: skip
    return check.faults, check.warnings


def misspelled(table: str, spellings: Mapping[str, str]) -> str:
    """Return why a table may not be spelled so; empty if it may."""
    first = spellings.get(folded(table), table)
    return "" if first == table else f"the table {table} is spelled {first}"


class _Check:
    def __init__(
        self,
        schemas: Mapping[str, TableSchema],
        others: Iterable[str],
        lists: Mapping[str, Sequence[str]],
        *,
        strict: bool,
    ) -> None:
        self._schemas = schemas
        self._spellings = first_spellings([*schemas, *others])
        self._lists = lists
        self._strict = strict
        self.faults: list[Fault] = []
        self.warnings: list[Fault] = []

    def fault(self, path: str, message: str) -> None:
        self.faults.append(Fault(path, message))

    def tables(self, tables: Collection[str], path: str) -> None:
        for at, table in self._listed(tables, path):
            if message := misspelled(table, self._spellings):
                self.fault(at, message)
            elif table not in self._schemas and self._strict:
                self.fault(at, f"no table {table} is registered; register its schema first")
            elif table not in self._schemas:
                message = f"the table {table} has no schema: its columns are not checked"
                self.warnings.append(Fault(at, message))

    def filter(self, item: Filter, path: str, tables: Collection[str]) -> None:
        """Check a filter of some tables; of all, it may name a column that only some have."""
        self.operand(item.op, item.value, f"{path}.value")
        if not item.column:
            return
        types = {
            schema.table: next((one.type for one in schema.columns if one.name == item.column), "")
            for schema in self._known(tables)
        }
        lacking = [table for table, kind in types.items() if not kind]
        self._missing(item.column, lacking, f"{path}.column", tables)
        for kind in sorted({kind.partition("(")[0] for kind in types.values() if kind}):
            if message := _incomparable(item, kind):
                self.fault(path, message)

    def operand(self, op: str, value: Operand, path: str) -> None:
        if isinstance(value, tuple) and value and op in ORDERED:
            self.fault(path, f"{op} compares with one value, not with a list")

    def omitted(self, columns: Collection[str], path: str, tables: Collection[str]) -> None:
        """Check columns that are left out of some tables."""
        for at, column in self._listed(columns, path):
            lacking = []
            for schema in self._known(tables):
                if folded(column) not in {folded(one.name) for one in schema.columns}:
                    lacking.append(schema.table)
                if folded(column) in map(folded, schema.primary_key):
                    self.fault(at, f"column {column} is of the primary key of table "
                               f"{schema.table}, by which its rows are known: it cannot be left "
                               "out")  # fmt: skip
            self._missing(column, lacking, at, tables)

    def _known(self, tables: Collection[str]) -> list[TableSchema]:
        """Return the schemas of some tables, of all if none is named."""
        spelled = {self._spellings.get(folded(one), one) for one in tables or self._schemas}
        return [self._schemas[one] for one in sorted(spelled) if one in self._schemas]

    def _missing(
        self, column: str, lacking: Sequence[str], at: str, tables: Collection[str]
    ) -> None:
        """Note that tables lack a column. One without a schema may have what no other has."""
        if tables:
            for table in lacking:
                self.fault(at, f"table {table} has no column {column}")
        elif lacking and len(lacking) == len(self._schemas):
            noted = self.faults if self._strict else self.warnings
            noted.append(Fault(at, f"no table with a schema has a column {column}"))

    def _listed(self, names: Collection[str], path: str) -> Iterable[tuple[str, str]]:
        """Yield the names of a list, each with its path."""
        for place, name in enumerate(self._lists.get(path) or sorted(names)):
            if name:
                yield f"{path}[{place}]", name


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
