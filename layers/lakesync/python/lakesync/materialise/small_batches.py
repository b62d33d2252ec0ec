"""Small batches without Spark: pushes of a quiet gateway reach the lake for a fraction of a cent.

What is small is decided only here, table by table: what waits for one is no reason to leave others.
The work is shared by the leases of gateway groups, with Spark's runs and with other functions;
everything that is left is the runs'. Laws L8, L9 and L19: ``docs/spec/lake.md``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final

from lakesync.core.deliveries import parse_claim
from lakesync.core.wording import plural
from lakesync.errors import Conflict, LakeSyncError
from lakesync.materialise.work_queue import Lease, LeftToSpark, MergeLeft, group_of_table, table_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from lakesync.core.deliveries import Batch
    from lakesync.materialise.small_table import SmallTable
    from lakesync.materialise.work_queue import ClaimEntry, LakeStore

CLAIMS_MAX: Final = 50
"""Claims of one table that are examined, or of all if no table is named: more are no small work,
whatever they contain."""
BYTES_MAX: Final = 16 << 20
"""Total size of the objects of a table's batches on S3."""
SECONDS_LEFT_MIN: Final = 12.0
"""A table is begun only if the function has this much time left."""
BUSY_S_MAX: Final = 5.0
"""How long a function waits for groups that others work on; another function has one for seconds,
a run for minutes."""
_LOOK_S: Final = 1.0
"""How often it looks."""


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
    later: set[str] = field(default_factory=set)
    """Tables that others work on, or for which no time was left: their claims may wait still."""


@dataclass(slots=True)
class _Waiting:
    batches: list[Batch] = field(default_factory=list)
    size: int = 0
    """Of the batches' objects."""
    oldest_s: float = 0.0
    """The age of the oldest claim."""

    @property
    def deltas(self) -> int:
        return sum(batch.deltas for batch in self.batches)


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
            open_tables: gives what applies batches; called only if there is work, and again after
                a fault: what the catalogue was opened with may have been rotated.
            deltas_max: waiting deltas of a table up to which they are small.
            merge_after_s: how long deltas may wait in a changes table for a merge that only Spark
                can do, so that one run merges many batches.
        """
        self._store = store
        self._open_tables = open_tables
        self._tables: SmallTable | None = None
        self._deltas_max = deltas_max
        self._run_id = run_id
        self._merge_after_s = merge_after_s

    def take(
        self,
        seconds_left: Callable[[], float],
        announced: Iterable[str] = (),
        tried: Collection[str] = (),
    ) -> Taken:
        """Bring waiting batches into the lake, if they are small. Idempotent, and safe to kill.

        Args:
            seconds_left: how long the function may continue.
            announced: whose batches, each as ``gateway/table``; none for all that wait.
            tried: tables that are left to Spark whatever waits.
        """
        taken = Taken()
        by_table = self._waiting(taken, announced, tried)
        by_group: dict[int, list[str]] = {}
        for table in by_table:
            by_group.setdefault(group_of_table(table), []).append(table)
        waited_s = 0.0
        while by_group:
            busy = {}
            for group, names in by_group.items():
                lease = Lease.acquire_if_free(self._store, group, self._run_id)
                if lease is None:
                    busy[group] = names
                    continue
                with lease:
                    self._take_all(names, by_table, lease, taken, seconds_left)
            by_group = busy
            if busy and (waited_s >= BUSY_S_MAX or seconds_left() < SECONDS_LEFT_MIN):
                taken.later.update(name for names in busy.values() for name in names)
                break
            if busy:
                self._store.pause(_LOOK_S)
                waited_s += _LOOK_S
        return taken

    def _waiting(
        self, taken: Taken, announced: Iterable[str], tried: Collection[str]
    ) -> dict[str, _Waiting]:
        waiting: dict[str, _Waiting] = {}
        for table, entries in self._claims(taken, announced).items():
            if table in tried:
                taken.left[table] = "its announcement came back again and again"
            elif len(entries) > CLAIMS_MAX:
                taken.left[table] = f"more than {CLAIMS_MAX} claims wait"
            elif (some := self._read(table, entries, taken)) is not None:
                waiting[table] = some
        return waiting

    def _claims(self, taken: Taken, announced: Iterable[str]) -> dict[str, list[ClaimEntry]]:
        """List the claims of some tables, or of all; one call for each gateway."""
        wanted = set(announced)
        entries: Iterator[ClaimEntry]
        if wanted:
            gateways = sorted({table.partition("/")[0] for table in wanted})
            entries = chain.from_iterable(self._store.claims(gateway) for gateway in gateways)
        else:
            some = list(islice(self._store.claims(), CLAIMS_MAX + 1))
            if len(some) > CLAIMS_MAX:
                taken.left[""] = f"more than {CLAIMS_MAX} claims wait"
                return {}
            entries = iter(some)
        by_table: dict[str, list[ClaimEntry]] = {}
        for entry in entries:
            table = table_of(entry.key)
            if not wanted or table in wanted:
                by_table.setdefault(table, []).append(entry)
        return by_table

    def _read(self, table: str, entries: Sequence[ClaimEntry], taken: Taken) -> _Waiting | None:
        """Return a table's batches; None if there are none any more, or they are not small."""
        waits = _Waiting()
        for key, age_s in entries:
            claim = self._store.read(key)
            if claim is None:
                continue  # another process was quicker
            try:
                batch = parse_claim(key, claim.body)
            except LakeSyncError as error:
                taken.left[table] = str(error)
                return None
            waits.batches.append(batch)
            waits.size += _bytes_of(claim.body)
            waits.oldest_s = max(waits.oldest_s, age_s)
        if waits.deltas > self._deltas_max or waits.size > BYTES_MAX:
            taken.left[table] = f"{plural(waits.deltas, 'delta')} waiting, {waits.size} bytes"
            return None
        return waits if waits.batches else None

    def _take_all(
        self, names: Sequence[str], by_table: Mapping[str, _Waiting], lease: Lease, taken: Taken,
        seconds_left: Callable[[], float],
    ) -> None:  # fmt: skip
        for name in names:
            if seconds_left() < SECONDS_LEFT_MIN:
                taken.later.add(name)
            else:
                self._take(name, by_table[name], lease, taken)

    def _take(self, name: str, waits: _Waiting, lease: Lease, taken: Taken) -> None:
        """Do one table. A fault in it does not stop the others; Spark's run reports it."""
        try:
            if any(f"{one.gateway}/{one.table}" != name for one in waits.batches):
                taken.left[name] = "a claim lies under another gateway or table"
                return
            self._tables = self._tables or self._open_tables()
            taken.deltas += self._tables.apply(waits.batches, lease)
        except Conflict:
            taken.later.add(name)
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
