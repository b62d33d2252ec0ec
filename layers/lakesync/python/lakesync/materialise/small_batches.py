"""Small batches without Spark: pushes of a quiet gateway reach the lake for a fraction of a cent.

What is small is decided only here. The work is shared with Spark's runs by the leases of gateway
groups; everything that is left is theirs. Laws L8, L9 and L19: ``docs/spec/lake.md``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from lakesync.core.claims import parse_claim
from lakesync.core.plural import plural
from lakesync.errors import Conflict, LakeSyncError
from lakesync.materialise.groups import group_of_table, table_of
from lakesync.materialise.lease import Lease
from lakesync.materialise.left import LeftToSpark, MergeLeft

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakesync.core.claims import Batch
    from lakesync.materialise.small_table import SmallTable
    from lakesync.materialise.storage import LakeStore

CLAIMS_MAX: Final = 50
"""Claims that are examined: more are no small work, whatever they contain."""
BYTES_MAX: Final = 16 << 20
"""Total size of the objects of all batches on S3."""
SECONDS_LEFT_MIN: Final = 12.0
"""A table is begun only if the function has this much time left."""


@dataclass(slots=True)
class Taken:
    """The result for the waiting claims."""

    deltas: int = 0
    """Brought into the lake."""
    left: dict[str, str] = field(default_factory=dict)
    """By table, why Spark has to do it."""
    merges: dict[str, str] = field(default_factory=dict)
    """By table, why Spark has to merge its changes table; that may wait for more deltas."""
    faults: int = 0
    """Tables with a failure, as opposed to a decision to leave them to Spark."""
    busy: bool = False
    """Another process works on the rest."""


@dataclass(slots=True)
class _Waiting:
    """The waiting claims of a table."""

    batches: list[Batch] = field(default_factory=list)
    oldest_s: float = 0.0
    """The age of the oldest claim."""


class SmallBatches:
    """The part of the work of Spark's runs that a function does."""

    def __init__(
        self,
        store: LakeStore,
        open_tables: Callable[[], SmallTable],
        deltas_max: int,
        run_id: str,
        merge_after_s: float = 0.0,
    ) -> None:
        """Prepare the work.

        Args:
            store: the bucket of claims.
            open_tables: gives what applies batches; called only if there is work, and again after
                a fault: what the catalogue was opened with may have been rotated.
            deltas_max: deltas of all that waits up to which it is small.
            run_id: whose lease it is.
            merge_after_s: how long deltas may wait in a changes table for a merge that only Spark
                can do, so that one run merges many batches.
        """
        self._store = store
        self._open_tables = open_tables
        self._tables: SmallTable | None = None
        self._deltas_max = deltas_max
        self._run_id = run_id
        self._merge_after_s = merge_after_s

    def take(self, seconds_left: Callable[[], float]) -> Taken:
        """Bring waiting batches into the lake, if they are small. Idempotent, and safe to kill.

        Args:
            seconds_left: how long the function may continue.
        """
        taken = Taken()
        by_table = self._waiting(taken)
        by_group: dict[int, list[str]] = {}
        for table in by_table:
            by_group.setdefault(group_of_table(table), []).append(table)
        for group, names in by_group.items():
            lease = Lease.acquire_if_free(self._store, group, self._run_id)
            if lease is None:
                taken.busy = True
                continue
            with lease:
                for name in names:
                    if seconds_left() < SECONDS_LEFT_MIN:
                        taken.left[name] = "the function has no time left"
                    else:
                        self._take(name, by_table[name], lease, taken)
        return taken

    def _waiting(self, taken: Taken) -> dict[str, _Waiting]:
        """Return the waiting claims, by table; nothing if they are not small."""
        entries = list(islice(self._store.claims(), CLAIMS_MAX + 1))
        if len(entries) > CLAIMS_MAX:
            taken.left[""] = f"more than {CLAIMS_MAX} claims wait"
            return {}
        deltas, size = 0, 0
        waiting: dict[str, _Waiting] = {}
        for key, age_s in entries:
            claim = self._store.read(key)
            if claim is None:
                continue  # another process was quicker
            try:
                batch = parse_claim(key, claim.body)
            except LakeSyncError as error:
                taken.left[table_of(key)] = str(error)
                continue
            deltas += batch.deltas
            size += _bytes_of(claim.body)
            waits = waiting.setdefault(table_of(key), _Waiting())
            waits.batches.append(batch)
            waits.oldest_s = max(waits.oldest_s, age_s)
        if deltas > self._deltas_max or size > BYTES_MAX:
            taken.left[""] = f"{plural(deltas, 'delta')} waiting, {size} bytes"
            return {}
        return {name: some for name, some in waiting.items() if name not in taken.left}

    def _take(self, name: str, waits: _Waiting, lease: Lease, taken: Taken) -> None:
        """Do one table. A fault in it does not stop the others; Spark's run reports it."""
        try:
            if any(f"{one.gateway}/{one.table}" != name for one in waits.batches):
                taken.left[name] = "a claim lies under another gateway or table"
                return
            self._tables = self._tables or self._open_tables()
            taken.deltas += self._tables.apply(waits.batches, lease)
        except Conflict:
            taken.busy = True
        except MergeLeft as reason:
            may_wait = waits.oldest_s < self._merge_after_s
            (taken.merges if may_wait else taken.left)[name] = str(reason)
        except Exception as error:  # noqa: BLE001 - whatever it is, the batch waits as it was
            taken.left[name] = f"{type(error).__name__}: {error}"[:300]
            if not isinstance(error, LeftToSpark):
                taken.faults += 1
                self._tables = None


def _bytes_of(claim: bytes) -> int:
    body: dict[str, Any] = json.loads(claim)
    size = body.get("bytes", 0)
    return size if isinstance(size, int) else 0
