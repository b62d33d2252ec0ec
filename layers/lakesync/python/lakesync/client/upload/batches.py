"""Which edits are pushed together: in stamp order, in bounded batches, transactions uncut.

Edits that were accepted by a buffer that has been restored since are pushed before all others.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from itertools import groupby, islice, takewhile
from typing import TYPE_CHECKING, Final

from lakesync.client.upload.entries import Entry, Status
from lakesync.wire.incoming import PUSH_DELTAS_MAX

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from lakesync.client.upload.outbox import Outbox
    from lakesync.core.clock import Stamp

BATCH_DELTAS_MAX: Final = 500
"""Single edits of one push: a few commits' worth, so that a lost answer repeats little."""
BATCH_BYTES_MAX: Final = 1_000_000
"""Deltas of one push, encoded, unless one edit or transaction alone is larger: seconds on a slow
line, and far below the gateway's limit.
"""
ATOMIC_DELTAS_MAX: Final = 80
"""Deltas of several small transactions that are pushed together; a commit has at most 100 items, of
which each shard needs two. A single transaction may be larger: the gateway decides about it.
"""
ATOMIC_BYTES_MAX: Final = 250_000
"""The same in bytes; a commit's log entry in one shard takes 380,000."""

TRANSACTION_DELTAS_MAX: Final = PUSH_DELTAS_MAX
"""Deltas of one local transaction that is pushed as one; no push may carry more."""
TRANSACTION_BYTES_MAX: Final = 4_000_000
"""The same in bytes: the body of a push, which may hold 4,500,000, and no commit is larger."""


@dataclass(frozen=True, slots=True)
class Batch:
    """What one push carries."""

    entries: tuple[Entry, ...]
    atomic: bool
    """The edits are one commit or none: some belong to one local transaction, or are pushed again
    after a restore.
    """
    units: int
    """Local transactions and single edits in the batch."""
    epoch: str | None = None
    """The gateway's epoch, as the file knows it; None until a gateway has told it."""
    was_stopped: bool = False
    """Its edits were stopped before, each for itself, by somebody on the way to the gateway."""

    @property
    def is_returning(self) -> bool:
        """Return whether it was accepted by a buffer that has been restored since."""
        return _accepted_before(list(self.entries))

    @property
    def is_hopeless(self) -> bool:
        """Return whether no gateway can accept the batch as one, so that a push would be wasted."""
        count, size = len(self.entries), _size(self.entries)
        return self.atomic and (count > TRANSACTION_DELTAS_MAX or size > TRANSACTION_BYTES_MAX)


def next_batch(outbox: Outbox, units_max: int) -> Batch | None:
    """Return at most so many local transactions and single edits; None if nothing waits."""
    with contextlib.closing(outbox.waiting()) as entries:
        units = _units(entries)
        first = next(units, None)
        if first is None:
            return None
        others = islice(units, units_max - 1)
        if _accepted_before(first):
            # As one commit: otherwise one commit could make an event of the next too late, which
            # would wrongly show that the gateway has it.
            batch = _atomic(first, takewhile(_accepted_before, others))
            return replace(batch, atomic=len(batch.entries) > 1)
        if len(first) > 1:
            return _atomic(first, others)
        singles = takewhile(lambda unit: len(unit) == 1, others)
        return _batch(first, singles, BATCH_DELTAS_MAX, BATCH_BYTES_MAX, atomic=False)


def stopped_batch(outbox: Outbox, units_max: int, tried: Collection[Stamp]) -> Batch | None:
    """Return a batch of edits that were stopped on their way, of none that was tried again."""
    with contextlib.closing(outbox.stopped(tried)) as entries:
        units = _units(entries)
        first = next(units, None)
        if first is None:
            return None
        others = [] if len(first) > 1 else takewhile(lambda unit: len(unit) == 1, units)
        batch = _batch(
            first, islice(others, units_max - 1), BATCH_DELTAS_MAX, BATCH_BYTES_MAX,
            atomic=len(first) > 1,
        )  # fmt: skip
        return replace(batch, was_stopped=True)


def _units(entries: Iterable[Entry]) -> Iterator[list[Entry]]:
    """Yield each local transaction, and each edit that stands alone."""
    for _, members in groupby(entries, key=lambda entry: entry.txn or -entry.hlc):
        yield list(members)


def _accepted_before(unit: list[Entry]) -> bool:
    return unit[0].status in {Status.OFFERED, Status.LOST}


def _atomic(first: list[Entry], others: Iterable[list[Entry]]) -> Batch:
    return _batch(first, others, ATOMIC_DELTAS_MAX, ATOMIC_BYTES_MAX, atomic=True)


def _batch(
    first: list[Entry],
    others: Iterable[list[Entry]],
    deltas_max: int,
    bytes_max: int,
    *,
    atomic: bool,
) -> Batch:
    """Return the first unit with as many others as there is room for."""
    entries, size, count = list(first), _size(first), 1
    for unit in others:
        size += _size(unit)
        if len(entries) + len(unit) > deltas_max or size > bytes_max:
            break
        entries += unit
        count += 1
    return Batch(tuple(entries), atomic, count)


def _size(unit: Iterable[Entry]) -> int:
    return sum(len(entry.run) for entry in unit)
