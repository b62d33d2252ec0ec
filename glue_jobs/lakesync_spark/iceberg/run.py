"""One run of the job: takes what waits, group by group, several tables at once.

Runs share the work by leases of groups of gateways: a run takes a free group when it has room for
its tables, and releases it when none of them can make progress. So any number of runs may work at
once, and a slow or failing table occupies only one thread. A lost lease ends the work on its
group. Laws L8, L9 and L12: ``docs/spec/lake.md``.
"""

from __future__ import annotations

import time
from collections import deque
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final, NamedTuple
from zlib import crc32

from lakesync.materialise.work_queue import GATEWAY_GROUPS, Lease, group_of_table, table_of
from lakesync_spark.common.report import Report, say
from lakesync_spark.common.scheduling import table_threads
from lakesync_spark.iceberg.table_run import TableRun
from lakesync_spark.iceberg.workbench import Workbench

if TYPE_CHECKING:
    from concurrent.futures import Future

    from pyspark.sql import SparkSession

    from lakesync.materialise.views import ViewCatalogue
    from lakesync.materialise.work_queue import LakeStore
    from lakesync_spark.common.arguments import Arguments

TABLES_AT_ONCE_MAX: Final = 8
"""Tables that a run works on at once. A small merge is mostly planning and waiting for S3, on a
driver of four cores; a large one has the executors to itself for as long as it is alone."""
TAKING_S_MAX: Final = 3_600.0
"""How long a run takes up tables. It ends by itself long before its job's time-out, however
steadily claims come; what it leaves, another run is started for."""
LOOK_S: Final = 15.0
"""How often a run with room looks for claims while its tables are at work."""


def run(
    spark: SparkSession,
    store: LakeStore,
    arguments: Arguments,
    run_id: str,
    views: ViewCatalogue | None = None,
) -> Report:
    """Process the whole backlog. Safe to repeat, to kill, and to run beside other runs."""
    report = Report()
    with ExitStack() as leases:
        work = _Run(spark, store, arguments, run_id, report, leases, views)
        with table_threads(spark, TABLES_AT_ONCE_MAX) as threads:
            work.go(threads)
    if work.lost is not None:
        raise work.lost
    return report


class _Group(NamedTuple):
    """A group of gateways that this run has the lease of."""

    bench: Workbench
    release: ExitStack
    tables: set[str]
    """Those that are at work, or ready for it."""


class _Run:
    """What is taken, what is at work, and what is left."""

    def __init__(
        self,
        spark: SparkSession,
        store: LakeStore,
        arguments: Arguments,
        run_id: str,
        report: Report,
        leases: ExitStack,
        views: ViewCatalogue | None,
    ) -> None:
        self._spark = spark
        self._store = store
        self._arguments = arguments
        self._run_id = run_id
        self._report = report
        self._leases = leases
        self._views = views
        self._ends = time.monotonic() + TAKING_S_MAX
        self._groups: dict[int, _Group] = {}
        self._not_ours: set[int] = set()
        """Groups that another live run holds, or that it took from this one."""
        self._ready: deque[str] = deque()
        self._at_work: dict[Future[set[str]], str] = {}
        self._left: set[str] = set()
        """Claims that could not go further when their table was last at work."""
        self._stuck: set[str] = set()
        self.lost: Exception | None = None
        """What ended the work on a group, if something did."""

    def go(self, threads: ThreadPoolExecutor) -> None:
        """Go on until nothing moves that is to be had.

        A claim that came between a table's last look and the release of its group is seen by the
        look that follows every release.
        """
        while True:
            self._fill(threads)
            if not self._at_work:
                return
            done, _ = wait(self._at_work, timeout=LOOK_S, return_when=FIRST_COMPLETED)
            for ended in done:
                self._end(ended)

    def _fill(self, threads: ThreadPoolExecutor) -> None:
        while len(self._at_work) < TABLES_AT_ONCE_MAX:
            if not self._ready and not self._take():
                return
            table = self._ready.popleft()
            bench = self._groups[group_of_table(table)].bench
            one = TableRun(bench, self._arguments, self._report, table, self._stuck)
            self._at_work[threads.submit(one.work)] = table

    def _take(self) -> bool:
        """Make tables ready: those of a group that is leased already, else of one that is free."""
        if time.monotonic() > self._ends:
            return False
        waiting = self._waiting()
        for group in waiting.keys() & self._groups.keys():
            self._make_ready(group, waiting[group])
        if self._ready:
            return True
        for group, tables in waiting.items():
            if self._lease(group, Lease.acquire_if_free(self._store, group, self._run_id)):
                self._make_ready(group, tables)
                return True
        # Whoever holds the rest may have released it when this run looks again; only at the end it
        # waits to see whether they are alive.
        return not self._at_work and self._inherit(waiting)

    def _inherit(self, waiting: dict[int, set[str]]) -> bool:
        """Take the groups whose holders are dead, as some seconds show, for all groups at once."""

        def acquire(group: int) -> Lease | None:
            return Lease.acquire(self._store, group, self._run_id)

        with ThreadPoolExecutor(GATEWAY_GROUPS) as looks:
            leases = dict(zip(waiting, looks.map(acquire, waiting), strict=True))
        for group, lease in leases.items():
            if self._lease(group, lease):
                self._make_ready(group, waiting[group])
            else:
                self._not_ours.add(group)
                self._report.leased_by_another = True
                say("held by another run", group=group)
        return bool(self._ready)

    def _waiting(self) -> dict[int, set[str]]:
        """Return the tables with claims that may move, by group; each run begins elsewhere."""
        tables = {
            table_of(entry.key)
            for entry in self._store.claims(self._arguments.only)
            if entry.key not in self._left and table_of(entry.key) not in self._stuck
        }
        begin = crc32(self._run_id.encode())
        waiting: dict[int, set[str]] = {}
        for table in sorted(tables, key=lambda one: (group_of_table(one) - begin) % GATEWAY_GROUPS):
            group = group_of_table(table)
            leased = self._groups.get(group)
            if group not in self._not_ours and not (leased and table in leased.tables):
                waiting.setdefault(group, set()).add(table)
        return waiting

    def _lease(self, group: int, lease: Lease | None) -> bool:
        """Keep a lease, if it was to be had."""
        if lease is None:
            return False
        say("lease", group=group, epoch=lease.epoch, run_id=self._run_id)
        release = self._leases.enter_context(ExitStack())
        release.enter_context(lease)
        bench = Workbench(self._spark, self._store, lease, self._arguments.stack, self._views)
        self._groups[group] = _Group(bench, release, set())
        return True

    def _make_ready(self, group: int, tables: set[str]) -> None:
        self._groups[group].tables.update(tables)
        self._ready.extend(sorted(tables))

    def _end(self, ended: Future[set[str]]) -> None:
        """Note what a table left; release its group if it was the last one."""
        table = self._at_work.pop(ended)
        group = group_of_table(table)
        error = ended.exception()
        if error is None:
            self._left |= ended.result()
        elif isinstance(error, Exception):
            self._lose(group, error)
        else:
            raise error
        self._groups[group].tables.discard(table)
        if not self._groups[group].tables:
            self._groups.pop(group).release.close()

    def _lose(self, group: int, error: Exception) -> None:
        """Take no more tables of a group whose lease is lost; running ones detect it."""
        say("lost", group=group, reason=str(error))
        self.lost = self.lost or error
        self._not_ours.add(group)
        self._ready = deque(table for table in self._ready if group_of_table(table) != group)
        busy = set(self._at_work.values())
        self._groups[group].tables.intersection_update(busy)
