"""Which batches a table takes next: the longest chain from its mark, without a gap. Pure.

Batches of one table form a chain: each begins where the one before it ended. A flush that was
repeated over a longer range leaves overlaps, ``(w, a]`` beside ``(w, b]``, and both contain the
same deltas up to ``a``; the longer one is taken.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lakesync.core.claims import Batch
    from lakesync.core.clock import Stamp

FOLD_DELTAS_MAX: Final = 10_000_000
"""Deltas of one fold; the rest waits for the next fold of the same run."""


class Link(NamedTuple):
    """A batch, and the stamp from which its commits are taken."""

    batch: Batch
    above: Stamp

    @property
    def is_trimmed(self) -> bool:
        """Whether the batch contains commits that are not taken."""
        return self.above > self.batch.after


class Chain(NamedTuple):
    """What one step of a table does with the waiting batches."""

    links: tuple[Link, ...]
    """Batches to apply, in order; their ranges touch and do not overlap."""
    covered: tuple[Batch, ...]
    """Batches whose commits are all applied already, or will be after the links."""
    waiting: tuple[Batch, ...]
    """Batches behind a gap, or behind `FOLD_DELTAS_MAX`."""

    @property
    def last(self) -> Stamp:
        """The mark after the links are applied."""
        return self.links[-1].batch.last


def next_chain(
    batches: Iterable[Batch], applied: Stamp, *, deltas_max: int = FOLD_DELTAS_MAX
) -> Chain:
    """Choose the batches that follow those applied."""
    links: list[Link] = []
    reached, deltas = applied, 0
    waiting = sorted(batches, key=lambda batch: batch.last)
    while following := _reaching_furthest(waiting, reached):
        deltas += following.deltas
        if links and deltas > deltas_max:
            break
        links.append(Link(following, reached))
        reached = following.last
    taken = {link.batch.claim_key for link in links}
    covered = tuple(
        batch for batch in waiting if batch.last <= reached and batch.claim_key not in taken
    )
    left = tuple(batch for batch in waiting if batch.last > reached)
    return Chain(tuple(links), covered, left)


def has_gap(waiting: Sequence[Batch], applied: Stamp) -> bool:
    """Return whether no batch continues the table: an earlier one is missing."""
    return bool(waiting) and all(batch.after > applied for batch in waiting)


def _reaching_furthest(batches: Sequence[Batch], reached: Stamp) -> Batch | None:
    fitting = [batch for batch in batches if batch.after <= reached < batch.last]
    return max(fitting, key=lambda batch: batch.last, default=None)
