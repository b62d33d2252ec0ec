"""The report of a maintenance run: a line for each table, and sums that become metrics."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from lakesync.maintenance.lake_plan import TableFigures
from lakesync_spark.common.report import reason_of, say

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lakesync.maintenance.lake_plan import Step

SERVICE: Final = "maintain_lake"
"""The dimension ``service`` of the metrics."""


class MaintenanceOutcome(StrEnum):
    DONE = "done"
    """Everything that paid was done, or nothing did."""
    LEFT = "left"
    """Something was left to the next run."""
    FAILED = "failed"


@dataclass(slots=True)
class TableReport:
    name: str
    gateway: str = ""
    table: str = ""
    before: TableFigures = field(default_factory=TableFigures)
    steps: tuple[Step, ...] = ()
    """What paid."""
    after: TableFigures | None = None
    """None if nothing was done."""
    orphans: int = 0
    """Files that nothing named, and that are gone."""
    outcome: MaintenanceOutcome = MaintenanceOutcome.DONE
    reason: str = ""

    def leave(self, reason: str) -> None:
        """Note that its files are left to the next run."""
        self.outcome, self.reason = MaintenanceOutcome.LEFT, reason

    @contextmanager
    def doing(self) -> Iterator[None]:
        """Note what goes wrong; the other tables go on."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - one table's failure must not stop the others
            self.outcome, self.reason = MaintenanceOutcome.FAILED, reason_of(error)
            say("failed", table=self.name, reason=self.reason)

    @property
    def now(self) -> TableFigures:
        return self.after or self.before

    def as_dict(self) -> dict[str, Any]:
        return {
            "table": self.name.replace("`", ""),
            "gateway": self.gateway,
            "steps": list(self.steps),
            "before": self.before._asdict(),
            "after": None if self.after is None else self.after._asdict(),
            "orphans": self.orphans,
            "outcome": self.outcome,
            "reason": self.reason,
        }


@dataclass(slots=True)
class MaintenanceReport:
    stack: str
    """The stack's ARN."""
    tables: list[TableReport] = field(default_factory=list)
    _adding: threading.Lock = field(default_factory=threading.Lock)

    def add(self, table: TableReport) -> None:
        """Tell of one more table; what becomes of it is noted in it."""
        with self._adding:
            self.tables.append(table)

    def sums(self) -> dict[str, Any]:
        """Return the line of the log that metric filters read."""
        figures = [table.now for table in self.tables]
        return {
            "service": SERVICE,
            "stack": self.stack.rpartition(":stack/")[2].partition("/")[0],
            "tables": len(self.tables),
            "files": sum(one.files for one in figures),
            "deleteFiles": sum(one.delete_files for one in figures),
            "smallFilesMost": max((one.small_files for one in figures), default=0),
            "snapshots": sum(one.snapshots for one in figures),
            "bytes": sum(one.bytes for one in figures),
            "left": sum(table.outcome is not MaintenanceOutcome.DONE for table in self.tables),
        }

    def problem(self) -> str:
        """Say in one sentence what somebody must look at; empty if nothing."""
        failed = (table for table in self.tables if table.outcome is MaintenanceOutcome.FAILED)
        return "; ".join(f"{table.name}: {table.reason}" for table in failed)

    def as_json(self) -> str:
        tables = (table.as_dict() for table in self.tables)
        return json.dumps({**self.sums(), "each": sorted(tables, key=lambda one: one["table"])})
