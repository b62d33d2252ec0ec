"""One run of the job: applies waiting batches, table by table, until no table can go further.

A failure stays with its table: the others go on, and it is reported at the end. A lost lease ends
the run at once. Laws L9 and L12: ``docs/spec/lake.md``.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Final

from lakesync.errors import LakeSyncError, Retry
from lakesync_spark.apply import Workbench, apply_chain, forget, is_readable, survey
from lakesync_spark.batches import parse_claim
from lakesync_spark.chain import FOLD_DELTAS_MAX
from lakesync_spark.lease import Lease
from lakesync_spark.report import Failure, Report, reason_of, say
from lakesync_spark.tables import TableName

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

    from lakesync_spark.arguments import Arguments
    from lakesync_spark.batches import Batch
    from lakesync_spark.chain import Chain
    from lakesync_spark.storage import ClaimEntry, LakeStore

WAIT_S_MAX: Final = 900.0
"""How long a batch may wait behind a gap before the run reports it as a failure."""


def run(spark: SparkSession, store: LakeStore, arguments: Arguments, run_id: str) -> Report:
    """Take everything that waits. Safe to repeat, to kill, and to start beside another run."""
    report = Report()
    left: set[str] | None = None
    # A claim may come between the last look and the release, announced to a run that found the
    # lease held and went home: so look once more after the release.
    while left is None or {entry.key for entry in store.claims(arguments.only)} - left:
        lease = Lease.acquire(store, run_id)
        if lease is None:
            report.held_by_another = True
            say("held by another run")
            return report
        say("lease", epoch=lease.epoch, run_id=run_id)
        with lease:
            synced_at = f"TIMESTAMP '{store.now:%Y-%m-%d %H:%M:%S}Z'"
            left = _Shift(Workbench(spark, store, lease, synced_at), arguments, report).work()
    return report


class _Shift:
    """The work under one lease."""

    def __init__(self, bench: Workbench, arguments: Arguments, report: Report) -> None:
        self._bench = bench
        self._arguments = arguments
        self._report = report
        self._read: dict[str, Batch] = {}
        self._singly: set[str] = set()
        """Tables that failed once, and are taken batch by batch since."""
        self._stuck: set[str] = set()
        """Tables, and claims that are none, that this run has given up."""

    def work(self) -> set[str]:
        """Go on until nothing moves; give the claims that are left."""
        while True:
            entries = list(self._bench.store.claims(self._arguments.only))
            self._report.waiting.clear()
            self._report.overdue.clear()
            moved = [
                self._advance(name, batches, entries) for name, batches in self._tables(entries)
            ]
            if not any(moved):
                return {entry.key for entry in entries}

    def _tables(self, entries: Sequence[ClaimEntry]) -> list[tuple[TableName, list[Batch]]]:
        """Give the batches that wait, by table."""
        batches = [batch for entry in entries if (batch := self._batch(entry.key))]
        batches.sort(key=lambda batch: (batch.gateway, batch.table, batch.last))
        catalog, prefix = self._arguments.catalog, self._arguments.database_prefix
        return [
            (TableName(catalog, prefix, *key), list(group))
            for key, group in groupby(batches, key=lambda batch: (batch.gateway, batch.table))
            if "/".join(key) not in self._stuck
        ]

    def _batch(self, key: str) -> Batch | None:
        """Read a claim; one that is none is set aside."""
        if key in self._read or key in self._stuck:
            return self._read.get(key)
        claim = self._bench.store.read(key)
        if claim is None:
            return None
        try:
            batch = parse_claim(key, claim.body)
        except LakeSyncError as error:
            self._stuck.add(key)
            self._bench.store.set_aside(key, claim.body, str(error))
            self._report.failed.append(Failure(key, "", str(error), set_aside=True))
            return None
        self._read[key] = batch
        return batch

    def _advance(
        self, name: TableName, batches: list[Batch], entries: Sequence[ClaimEntry]
    ) -> bool:
        """Take a table a step further; tell whether that may let it go on."""
        table = _label(name)
        chain = None
        try:
            chain = survey(
                self._bench, name, batches, 0 if table in self._singly else FOLD_DELTAS_MAX
            )
            if chain.links:
                self._apply(name, chain)
                return True
            forget(self._bench, chain.covered)
        except Exception as error:  # noqa: BLE001 - one table's failure must not stop the others
            self._bench.lease.check()  # a lost lease stops them all
            self._bear(table, chain, error)
            return True
        self._note_waiting(table, chain, entries)
        return bool(chain.covered)

    def _apply(self, name: TableName, chain: Chain) -> None:
        deltas = sum(link.batch.deltas for link in chain.links)
        table, batches = _label(name), len(chain.links)
        say("applying", table=table, batches=batches, deltas=deltas)
        apply_chain(self._bench, name, chain)
        self._report.add_applied(table, batches=batches, deltas=deltas, commit=chain.last)
        say("applied", table=table, commit=str(chain.last))

    def _bear(self, table: str, chain: Chain | None, error: Exception) -> None:
        """Try a failed chain again batch by batch; give up on the batch that fails by itself."""
        reason = reason_of(error)
        say("failed", table=table, reason=reason)
        if chain is not None and table not in self._singly:
            self._singly.add(table)
            return
        batch = chain.links[0].batch if chain and chain.links else None
        hopeless = batch is not None and self._is_hopeless(batch, error)
        if batch is not None and hopeless:
            self._set_aside(batch, reason)
        else:
            self._stuck.add(table)
        self._report.failed.append(Failure(table, batch.name if batch else "", reason, hopeless))

    def _is_hopeless(self, batch: Batch, error: Exception) -> bool:
        if isinstance(error, LakeSyncError):
            return error.retry is Retry.NEVER
        return not is_readable(self._bench, batch)

    def _set_aside(self, batch: Batch, reason: str) -> None:
        claim = self._bench.store.read(batch.claim_key)
        if claim is not None:
            self._bench.store.set_aside(batch.claim_key, claim.body, reason)

    def _note_waiting(self, table: str, chain: Chain, entries: Sequence[ClaimEntry]) -> None:
        if chain.waiting:
            ages = {entry.key: entry.age_s for entry in entries}
            self._report.waiting[table] = len(chain.waiting)
            if max(ages[batch.claim_key] for batch in chain.waiting) > WAIT_S_MAX:
                self._report.overdue.append(table)


def _label(name: TableName) -> str:
    return f"{name.gateway}/{name.table}"
