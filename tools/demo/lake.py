"""The lake's side of the demo: flush, watch the Glue job, read the table now and as it was."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from lakesync.analysis.lake import Lake
from lakesync.analysis.past import AtTime
from lakesync.cli.commands.backlog import waiting_batches
from lakesync.cli.session import call
from tools.demo.evidence import rows_of_lake
from tools.demo.flights import TABLE
from tools.local_stack.errors import LocalStackError

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakesync.analysis.connection import Aws
    from tools.demo.flights import Rows

_RUN_S_MAX: Final = 300
_POLL_S: Final = 0.25
_AT_WORK: Final = frozenset({"STARTING", "RUNNING", "STOPPING", "WAITING"})
_FAILED: Final = frozenset({"FAILED", "TIMEOUT", "ERROR", "STOPPED"})


class DemoLake:
    """One gateway's lake."""

    def __init__(self, aws: Aws, url: str, gateway: str, admin_token: Callable[[], str]) -> None:
        self._aws = aws
        self._url = url
        self._gateway = gateway
        self._admin_token = admin_token
        self._flushed_at = datetime.now(UTC)

    def ask(
        self, path: str, body: object = None, rest: str = "", *, method: str = "POST"
    ) -> dict[str, Any]:
        """Call an administrative route of the gateway; ``rest`` follows the gateway's name."""
        address = f"{path}/{self._gateway}{rest}"
        return call(self._url, self._admin_token(), method, address, body)

    def flush(self) -> dict[str, Any]:
        """Write what the buffer holds to S3 and announce it.

        Not while a run is at work, which may be an interrupted demo's: a run that is about to end
        would not see the new batches, and their announcement waits a minute or two for the next.
        """
        while any(run["JobRunState"] in _AT_WORK for run in self._runs()):
            time.sleep(_POLL_S)
        self._flushed_at = datetime.now(UTC)
        return self.ask("/admin/flush")

    def wait_until_merged(self, show: Callable[[str], None]) -> float:
        """Return once the Glue job has merged what was announced; returns its seconds.

        Raises:
            LocalStackError: a run failed, or five minutes went by.
        """
        started = time.monotonic()
        while self._at_work() or waiting_batches(self._aws, self._gateway):
            waited = time.monotonic() - started
            show(f"{waited:.0f} s")
            if waited > _RUN_S_MAX:
                raise LocalStackError(
                    "run `lakesync status`: the Glue job has not merged the batches after 5 min."
                )
            time.sleep(_POLL_S)
        return time.monotonic() - started

    def rows(self, at_ms: int | None = None) -> Rows:
        """Return the Iceberg table's rows, as they are or as they were."""
        lake = Lake(self._aws, self._gateway)
        return rows_of_lake(lake.read(TABLE, None if at_ms is None else AtTime(at_ms)))

    def _at_work(self) -> bool:
        """Return whether a run is at work.

        Raises:
            LocalStackError: one that was started for our batches has failed.
        """
        runs = self._runs()
        for run in runs:
            if run["JobRunState"] in _FAILED and run["StartedOn"] >= self._flushed_at:
                reason = str(run.get("ErrorMessage", "")).strip().rpartition("\n")[2][:200]
                raise LocalStackError(
                    f"read .local/logs/glue/{run['Id']}.log: the Glue run ended "
                    f"{run['JobRunState']}: {reason}"
                )
        return any(run["JobRunState"] in _AT_WORK for run in runs)

    def _runs(self) -> list[dict[str, Any]]:
        job = self._aws.output("GlueJobName")
        runs: list[dict[str, Any]] = self._glue.get_job_runs(JobName=job, MaxResults=50)["JobRuns"]
        return runs

    @cached_property
    def _glue(self) -> Any:
        return self._aws.client("glue")
