"""A table of BigQuery that is polled, on the emulator."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from lakesync.connectors import Storage
from lakesync.systems.bigquery.bigquery_settings import BigQuerySettings
from lakesync.systems.bigquery.bigquery_source import BigQueryConnector
from tests.support.bigquery import DATASET, EmulatedJobs
from tests.support.lake import Objects

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tools.local_stack.bigquery import BigQueryServer

_numbers = itertools.count()
COLUMNS = "id INT64 NOT NULL, value STRING, changed TIMESTAMP"


class BigQuerySource:
    """A table that a connector polls.

    Args:
        query: what is read in its place; ``{table}`` is its name there.
    """

    def __init__(
        self,
        server: BigQueryServer,
        *,
        by_time: bool,
        query: str = "",
        columns: str = COLUMNS,
        table: Mapping[str, Any] | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.table = f"source{next(_numbers)}"
        self.notices_deletions = not by_time
        self.storage = Storage(Objects(), "g", f"c{self.table}")
        self.jobs = EmulatedJobs(server)
        polled: dict[str, Any] = {"name": self.table, "key": ["id"]}
        if query:
            polled["query"] = query.replace("{table}", self.table)
        if by_time:
            polled["cursorColumn"] = "changed"
        self.settings = BigQuerySettings.model_validate({
            "project": server.project, "dataset": DATASET, "endpoint": server.endpoint,
            "settleS": 0, "tables": [polled | dict(table or {})],
        } | dict(settings or {}))  # fmt: skip
        self.now = (
            "DATETIME(CURRENT_TIMESTAMP())" if "DATETIME" in columns else "CURRENT_TIMESTAMP()"
        )
        self.run(f"CREATE TABLE {self.table} ({columns})")

    def connector(self) -> BigQueryConnector:
        return BigQueryConnector(self.jobs, self.settings, self.storage)

    def run(self, statement: str) -> None:
        self.jobs.query(statement)

    def put(self, rows: Mapping[str, Any]) -> None:
        ids = ", ".join(rows)
        self.run(f"DELETE FROM {self.table} WHERE id IN ({ids})")  # noqa: S608 - ours
        new = (f"({row_id}, '{value}', {self.now})" for row_id, value in rows.items())
        values = ", ".join(new)
        self.run(f"INSERT INTO {self.table} (id, value, changed) VALUES {values}")  # noqa: S608

    def delete(self, row_id: str) -> None:
        self.run(f"DELETE FROM {self.table} WHERE id = {row_id}")  # noqa: S608

    def value(self, columns: Mapping[str, Any]) -> Any:
        return columns.get("value")

    def close(self) -> None:
        self.run(f"DROP TABLE IF EXISTS {self.table}")
        self.jobs.close()
