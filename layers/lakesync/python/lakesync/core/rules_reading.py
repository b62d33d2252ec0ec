"""Parts of the reader of sync rules: objects, lists, names and values, with every fault noted.

Law V3: ``docs/spec/visibility.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeGuard

from lakesync.core.comparing import is_operand
from lakesync.core.names import first_spellings, folded, is_table_name
from lakesync.core.rules import (
    BUCKETS_MAX,
    CLAIM_PREFIX,
    OPERATORS,
    ORDERED,
    VALUES_MAX,
    Claim,
)
from lakesync.errors import Fault

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from lakesync.core.rules import Operand
    from lakesync.core.schema import TableSchema


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
