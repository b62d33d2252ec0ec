"""Salesforce's fields as columns: their types, and their values in JSON and in CSV."""

from __future__ import annotations

import csv
import io
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lakesync.connectors.deltas import identifier
from lakesync.connectors.http_answers import NOT_AS_DESCRIBED
from lakesync.connectors.instants import instant, microseconds, utc_text
from lakesync.connectors.port import Change, SourceColumn, SourceTable
from lakesync.connectors.records import changes_in
from lakesync.errors import AdapterFailed, AdapterRefused

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from lakesync.connectors.port import Unreadable
    from lakesync.connectors.salesforce.configuration import SalesforceTable

CHANGED: Final = "SystemModstamp"
DELETED: Final = "IsDeleted"
_TYPES: Final[Mapping[str, str]] = {
    "boolean": "boolean", "int": "integer", "long": "integer", "double": "number",
    "currency": "number", "percent": "number", "date": "date", "datetime": "timestamp",
}  # fmt: skip
"""What is not text."""
_LEFT_OUT: Final = frozenset({"address", "location", "base64", "complexvalue", "anyType"})
"""Types composed of other fields, and types that queries of many rows do not give."""


class Plan(NamedTuple):
    """How an object is read."""

    name: str
    fields: Mapping[str, str]
    """Types of columns, by the names of fields."""
    has_deleted: bool
    """Its deleted rows are marked as such."""

    def select(self, where: str) -> str:
        """Return a query."""
        deleted = [DELETED] if self.has_deleted and DELETED not in self.fields else []
        return f"SELECT {', '.join([*self.fields, *deleted])} FROM {self.name} {where}"  # noqa: S608 - names that Salesforce gave or that were checked


def plan_of(table: SalesforceTable, described: Mapping[str, Any]) -> Plan:
    """Return how an object is read.

    Raises:
        AdapterRefused: it cannot be read, or lacks a configured field.
    """
    known = {
        each["name"]: _TYPES.get(each["type"], "string")
        for each in described["fields"]
        if each["type"] not in _LEFT_OUT and not each.get("deprecatedAndHidden")
    }
    if CHANGED not in known or not described.get("queryable", True):
        raise AdapterRefused(f"{table.name} tells no {CHANGED}: it cannot be polled")
    wanted = dict.fromkeys(("Id", *(table.fields or known), CHANGED))
    missing = [name for name in wanted if name not in known]
    if missing:
        raise AdapterRefused(
            f"{table.name} has no field {', '.join(missing)}, or the user may not read it"
        )
    return Plan(table.name, {name: known[name] for name in wanted}, DELETED in known)


def source_table(plan: Plan) -> SourceTable:
    """Return an object as a table."""
    columns = [
        SourceColumn(name, kind, nullable=name != "Id") for name, kind in plan.fields.items()
    ]
    return SourceTable(plan.name, tuple(columns), ("Id",))


def changes_of(
    plan: Plan, records: Iterable[Mapping[str, Any]]
) -> tuple[list[Change], list[Unreadable]]:
    """Return records as changes; values are JSON values, or text if they are from CSV."""

    def change(row_id: str, record: Mapping[str, Any]) -> Change:
        changed_us = microseconds(instant(record[CHANGED]))
        gone = _value(record.get(DELETED), "boolean") is True
        columns = {
            identifier(name): _value(record.get(name), kind) for name, kind in plan.fields.items()
        }
        return Change(row_id, None if gone else columns, changed_us)

    return changes_in(records, "Id", change)


def last_changed(records: Sequence[Mapping[str, Any]]) -> str:
    """Return the latest change time of the records; empty if none has one."""
    for record in reversed(records):
        try:
            instant(record[CHANGED])
        except NOT_AS_DESCRIBED:
            continue
        return str(record[CHANGED])
    return ""


def records_in(plan: Plan, body: bytes, rows_expected: int) -> Sequence[Mapping[str, Any]]:
    """Return the records of a page of CSV.

    Raises:
        AdapterFailed: it is cut off.
    """
    try:
        rows = list(csv.DictReader(io.StringIO(body.decode("utf-8-sig"), newline=""), strict=True))
    except (csv.Error, UnicodeDecodeError) as exc:
        raise AdapterFailed("the bulk query's answer was cut off") from exc
    if len(rows) != rows_expected or any(None in row.values() or None in row for row in rows):
        raise AdapterFailed(f"the bulk query's answer for {plan.name} was cut off")
    return rows


def _value(value: Any, kind: str) -> Any:
    if value is None or value == "":
        return None
    if kind == "timestamp":
        return utc_text(instant(value), "milliseconds")
    if kind == "boolean":
        return value if isinstance(value, bool) else {"true": True, "false": False}[value.lower()]
    if kind == "integer":
        return int(Decimal(str(value)))
    if kind == "number":
        return float(value)
    return str(value)
