"""BigQuery under test: the emulator, and what of BigQuery it does not do itself."""

from __future__ import annotations

import itertools
import re
import threading
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Final, TypeVar

import sqlglot
from google.auth.credentials import AnonymousCredentials
from google.cloud import bigquery as google

from lakesync.errors import AdapterUnreachable
from lakesync.systems.bigquery.bigquery_database import (
    BigQueryAdapter,
    Change,
    stage_commits,
    stage_rows,
)
from lakesync.systems.bigquery.bigquery_jobs import Jobs
from lakesync.systems.bigquery.bigquery_statements import column_type, quoted
from lakesync.wire.records import encode_record
from tests.support.destinations import (
    new_gateway,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lakesync.adapters.database import Inserted, TableBatch
    from lakesync.errors import LakeSyncError
    from lakesync.result import Result
    from lakesync.systems.bigquery.bigquery_database import BulkWrite
    from lakesync.systems.bigquery.bigquery_ledger import Stage
    from tools.local_stack.bigquery import BigQueryServer

T = TypeVar("T")

DATASET: Final = "lakesync"
_VARYING: Final = re.compile(r"`\w+`|\b[1-9][0-9]*\b")


def check_statement(statement: str) -> None:
    """Parse a statement or script as BigQuery's own: the emulator takes what BigQuery would not.

    Statements that differ only in names and numbers are parsed once.
    """
    _check_shape(_VARYING.sub(lambda match: "`name`" if match[0][0] == "`" else "1", statement))


@cache
def _check_shape(statement: str) -> None:
    for parsed in sqlglot.parse(statement, read="bigquery"):
        assert parsed is None or not isinstance(parsed, sqlglot.exp.Command), statement


class EmulatedJobs(Jobs):
    """Jobs on the emulator.

    Of two transactions that change one table BigQuery undoes one. The emulator isolates none from
    another, and undoing one there may undo another's work: here scripts run one after another, and
    who comes later finds a mark that moved, as with BigQuery. That BigQuery undoes one is shown by
    its own words, in ``tests/systems/bigquery/test_bigquery.py``.
    """

    _one_at_a_time = threading.Lock()

    def __init__(self, server: BigQueryServer) -> None:
        client = google.Client(project=server.project, credentials=AnonymousCredentials())
        super().__init__(server.project, DATASET, client=client, retry_s=2)

    def _finished(self, statement: str, parameters: Mapping[str, Any]) -> Any:
        check_statement(statement)
        return super()._finished(statement, parameters)

    def start(self, statement: str, *parameters: Any, **more: Any) -> None:
        check_statement(statement)
        super().start(statement, *parameters, **more)

    def change(self, statement: str, **parameters: Any) -> int:
        """Change rows or tables; the emulator adds one column at a time."""
        first, *more = statement.split(", ADD COLUMN ")
        table = first.partition(" ADD COLUMN ")[0]
        changed = super().change(first, **parameters)
        for column in more:
            super().change(f"{table} ADD COLUMN {column}")
        return changed

    def transact(self, script: str) -> None:
        with self._one_at_a_time:
            super().transact(script)


class InterruptedJobs(EmulatedJobs):
    """Jobs that are lost at one request: before it was sent, or before its answer came."""

    def __init__(self, server: BigQueryServer, cut: int) -> None:
        super().__init__(server)
        self._left = cut
        self.statements = 0

    def _asked(self, work: Callable[[], T]) -> T:
        self._step()
        done = super()._asked(work)
        self._step()
        return done

    def _step(self) -> None:
        self.statements += 1
        self._left -= 1
        if not self._left:
            raise AdapterUnreachable("the connection was lost")


class PartsAdapter(BigQueryAdapter):
    """An adapter whose batches are merged and staged in parts, as tasks of the job do it.

    Each part is tried twice, as a task is whose machine was lost behind its work.
    """

    def insert_deltas(self, batch: TableBatch) -> Result[Inserted, LakeSyncError]:
        """Take a batch, by the rows of two ranges of ids."""
        changes = [
            Change(delta.row_id, *position, encode_record(delta))
            for position, delta in batch.deltas
        ]

        def stage(work: BulkWrite) -> list[Stage]:
            again = [Change(row_id, 0, 0, None) for row_id in work.refused]
            ordered = sorted(
                [*changes, *again], key=lambda one: (one.row_id.encode(), one.commit, one.place)
            )
            ids = sorted({one.row_id for one in ordered}, key=str.encode)
            last = set(ids[len(ids) // 2 :])
            parts = [
                [one for one in ordered if (one.row_id in last) is is_last]
                for is_last in (False, True)
            ]
            # The first try of each is lost, with what it staged.
            tries = [[[*stage_rows(self._jobs, work, part)] for part in parts] for _ in range(2)]
            commits = stage_commits(self._jobs, work, batch.deltas)
            return [*commits, *itertools.chain(*tries[-1])]

        written = {name for _, delta in batch.deltas for name, _ in delta.columns}
        return self.insert_staged(replace(batch, deltas=()), written, stage)


@dataclass(frozen=True)
class BigQueryDestination:
    """`tests.support.destinations.Destination` on the emulator."""

    server: BigQueryServer
    jobs: EmulatedJobs
    kind: type[BigQueryAdapter] = BigQueryAdapter
    _open: list[BigQueryAdapter] = field(default_factory=list)

    def adapter(self, gateway: str = "", *, history_ms: int | None = None) -> BigQueryAdapter:
        is_interrupted = isinstance(self.jobs, InterruptedJobs)
        jobs = self.jobs if is_interrupted else EmulatedJobs(self.server)
        adapter = self.kind(jobs, gateway or new_gateway(), history_ms=history_ms)
        self._open.append(adapter)
        return adapter

    def interrupted(self, cut: int) -> BigQueryDestination:
        """Return the same dataset, to be lost at a request; closed with this one."""
        return replace(self, jobs=InterruptedJobs(self.server, cut))

    @property
    def statements(self) -> int:
        """How many requests were made, each counted before and behind it."""
        assert isinstance(self.jobs, InterruptedJobs)
        return self.jobs.statements

    def close(self) -> None:
        while self._open:
            self._open.pop().close()

    def run(self, statement: str) -> list[Any]:
        """Run a statement as somebody else who uses the dataset."""
        return self.jobs.query(statement)

    def set_props(self, table: str, text: str) -> None:
        """Set every row's ``props``."""
        self.run(f"UPDATE {table} SET props = PARSE_JSON('{text}') WHERE TRUE")  # noqa: S608 - ours

    def sql_type(self, type_name: str) -> str:
        return column_type(type_name)

    def columns(self, table: str) -> set[str]:
        return self.jobs.columns(table) or set()

    def rows(self, table: str, *columns: str) -> dict[str, tuple[Any, ...]]:
        names = ", ".join(map(quoted, ["row_id", *columns]))
        rows = self.run(f"SELECT {names} FROM {quoted(table)}")  # noqa: S608 - quoted
        return {row_id: tuple(values) for row_id, *values in rows}


def bigquery_destination(
    server: BigQueryServer, kind: type[BigQueryAdapter] = BigQueryAdapter
) -> BigQueryDestination:
    return BigQueryDestination(server, EmulatedJobs(server), kind)
