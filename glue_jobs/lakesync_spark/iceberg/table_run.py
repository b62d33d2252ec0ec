"""One table's part of a run: applies its batches as far as possible. On one thread.

A failure in one table does not stop the others. A chain of batches that fails is retried batch by
batch; a batch that can never be read is set aside with the reason. After any other failure, also a
fault of the table itself, the batch is left for the next run.
Law L9: ``docs/spec/lake.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lakesync.core.deliveries import parse_claim
from lakesync.errors import LakeSyncError, Retry, ValidationFailed
from lakesync.materialise.work_queue import FOLD_DELTAS_MAX
from lakesync_spark.common.report import Failure, reason_of, say
from lakesync_spark.iceberg.apply import apply_chain, forget, is_readable, survey
from lakesync_spark.iceberg.tables import located

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lakesync.core.deliveries import Batch
    from lakesync.materialise.work_queue import Chain, ClaimEntry
    from lakesync_spark.common.arguments import Arguments
    from lakesync_spark.common.report import Report
    from lakesync_spark.iceberg.tables import TableName
    from lakesync_spark.iceberg.workbench import Workbench

WAIT_S_MAX: Final = 900.0
"""How long a batch may wait behind a gap before the run reports it as a failure."""


class TableRun:
    """The work on one table, under the lease of its gateway's group."""

    def __init__(
        self, bench: Workbench, arguments: Arguments, report: Report, table: str, stuck: set[str]
    ) -> None:
        """Prepare the work.

        Args:
            report: what is told of the table; others tell of theirs at the same time.
            table: as ``gateway/table``.
            stuck: the tables, and claims that are none, that the run has given up; added to here.
        """
        self._bench = bench
        self._report = report
        self._table = table
        self._located = (
            arguments.catalog, arguments.database_prefix, *table.partition("/")[::2]
        )  # fmt: skip
        self._stuck = stuck
        self._read: dict[str, Batch] = {}
        self._chain: Chain | None = None
        """What is being applied."""
        self._is_singly = False
        """Whether it failed once, and its batches are taken one by one since."""

    def work(self) -> set[str]:
        """Go on until nothing moves; give the claims that are left.

        Raises:
            Conflict: the lease is lost; nothing more is committed.
        """
        entries: list[ClaimEntry] = []
        goes_on = True
        while goes_on and self._table not in self._stuck:
            self._chain = None
            try:
                entries = list(self._bench.store.claims(self._table))
                goes_on = self._advance(entries)
            except Exception as error:  # noqa: BLE001 - one table's failure must not stop the others
                self._bench.lease.check()  # a lost lease ends the work on all of its tables
                self._bear(error)
        return {entry.key for entry in entries}

    def _batch(self, key: str) -> Batch | None:
        """Read a claim; one that is none is set aside, one of a later release waits for that."""
        if key in self._read or key in self._stuck:
            return self._read.get(key)
        claim = self._bench.store.read(key)
        if claim is None:
            return None
        try:
            batch = parse_claim(key, claim.body)
            if f"{batch.gateway}/{batch.table}" != self._table:
                raise ValidationFailed("a claim lies under its own gateway and table")
        except LakeSyncError as error:
            self._stuck.add(key)
            waits = error.retry is Retry.LATER
            if not waits:
                self._bench.store.set_aside(key, claim.body, str(error))
            self._report.failed.append(Failure(key, "", str(error), set_aside=not waits))
            return None
        self._read[key] = batch
        return batch

    def _advance(self, entries: Sequence[ClaimEntry]) -> bool:
        """Take a step further; tell whether that may let the table go on."""
        batches = [batch for entry in entries if (batch := self._batch(entry.key))]
        self._report.waiting.pop(self._table, None)
        self._report.overdue.discard(self._table)
        if not batches:
            return False
        batches.sort(key=lambda batch: batch.last)
        deltas_max = 0 if self._is_singly else FOLD_DELTAS_MAX
        name = located(self._bench.spark, *self._located)
        self._chain = chain = survey(self._bench, name, batches, deltas_max)
        if chain.links:
            self._apply(name, chain)
            return True
        forget(self._bench, chain.covered)
        self._note_waiting(chain, entries)
        return bool(chain.covered)

    def _apply(self, name: TableName, chain: Chain) -> None:
        deltas = sum(link.batch.deltas for link in chain.links)
        table, batches = self._table, len(chain.links)
        say("applying", table=table, batches=batches, deltas=deltas)
        apply_chain(self._bench, name, chain)
        self._report.add_applied(table, batches=batches, deltas=deltas, commit=chain.last)
        say("applied", table=table, commit=str(chain.last))

    def _bear(self, error: Exception) -> None:
        """Retry a failed chain batch by batch; gives up on a batch that fails alone."""
        chain, reason = self._chain, reason_of(error)
        say("failed", table=self._table, reason=reason)
        if chain is not None and not self._is_singly:
            self._is_singly = True
            return
        batch = chain.links[0].batch if chain and chain.links else None
        hopeless = batch is not None and self._is_hopeless(batch)
        if batch is not None and hopeless:
            self._set_aside(batch, reason)
        else:
            self._stuck.add(self._table)
        name = batch.name if batch else ""
        self._report.failed.append(Failure(self._table, name, reason, hopeless))

    def _is_hopeless(self, batch: Batch) -> bool:
        """Return whether a batch can never be read; one that is unreachable now waits."""
        try:
            return not is_readable(self._bench, batch)
        except Exception as error:  # noqa: BLE001 - S3's fault, or ours, is not the batch's
            say("cannot tell", batch=batch.name, reason=reason_of(error))
            return False

    def _set_aside(self, batch: Batch, reason: str) -> None:
        claim = self._bench.store.read(batch.claim_key)
        if claim is not None:
            self._bench.store.set_aside(batch.claim_key, claim.body, reason)

    def _note_waiting(self, chain: Chain, entries: Sequence[ClaimEntry]) -> None:
        if chain.waiting:
            ages = {entry.key: entry.age_s for entry in entries}
            self._report.waiting[self._table] = len(chain.waiting)
            if max(ages[batch.claim_key] for batch in chain.waiting) > WAIT_S_MAX:
                self._report.overdue.add(self._table)
