"""The comparison: what each holder has, against what the source data says it must be."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any

from lakesync.analysis.lake import ROW_ID
from tools.demo.flights import TABLE, TYPES

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pandas as pd
    import pyarrow as pa

    from lakesync.client import Client
    from tools.demo.flights import Row, Rows


@dataclass(frozen=True)
class Verdict:
    """One holder's rows against what they must be."""

    holder: str
    rows: int
    missing: int
    """Rows that it lacks."""
    surplus: int
    """Rows that it should not have."""
    differing: Mapping[str, int]
    """How many values differ, by column; columns without a difference are left out."""

    @property
    def right(self) -> bool:
        """Whether every row and every column is as it must be."""
        return not (self.missing or self.surplus or self.differing)

    @property
    def sentence(self) -> str:
        """The verdict in words."""
        if self.right:
            return "equal, column for column"
        parts = [f"{self.missing} missing"] if self.missing else []
        parts += [f"{self.surplus} too many"] if self.surplus else []
        parts += [f"{name}: {count} differ" for name, count in self.differing.items()]
        return "; ".join(parts)


def compare(holder: str, rows: Rows, wanted: pd.DataFrame) -> Verdict:
    """Compare every value of every column of every row."""
    must: dict[Any, Any] = wanted.to_dict(orient="index")
    shared = must.keys() & rows.keys()
    differing = {
        name: count
        for name in wanted.columns
        if (count := sum(rows[row].get(name) != _plain(must[row][name]) for row in shared))
    }
    return Verdict(
        holder,
        len(rows),
        missing=len(must.keys() - rows.keys()),
        surplus=len(rows.keys() - must.keys()),
        differing=differing,
    )


def rows_of_client(client: Client) -> Rows:
    """Return what an app sees in its SQLite table."""
    selected = client.query(f"SELECT * FROM {TABLE}").unwrap()  # noqa: S608 - a constant
    return {row.pop("_row_id"): row for row in selected}


def rows_of_lake(table: pa.Table) -> Rows:
    """Return what a reader sees in the Iceberg table: typed values, as JSON has them."""
    return {row.pop(ROW_ID): as_json(row) for row in table.to_pylist()}


def as_json(row: Row) -> Row:
    """Return a row's typed values as JSON has them; columns that it lacks are null."""
    return {name: _plain(row.get(name)) for name in TYPES}


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    return value
