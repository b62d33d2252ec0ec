"""What each partition of a DynamoDB table takes in a second, and how a hot one is split.

A partition key's items lie in one partition until heat splits them by their sort keys. A request is
taken while the partition has units left, and may leave it in debt, as a bucket of tokens does.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

WRITE_UNITS_PER_S: Final = 1_000
READ_UNITS_PER_S: Final = 3_000
"""Of one partition: "Best practices for designing and using partition keys", DynamoDB."""
TABLE_UNITS_PER_S: Final = 40_000
"""Of an on-demand table, reads and writes each: DynamoDB's default quota."""
BURST_S: Final = 1.0
"""Seconds of unused units that may be used later. DynamoDB keeps up to 300; what is asked here is
what goes on for hours, when those are used up."""


@dataclass
class _Bucket:
    """Units that come back at a rate."""

    per_s: float
    units: float
    at_ms: float

    def take(self, units: float, now_ms: float) -> bool:
        """Take units, if there are any; returns whether."""
        refilled = self.units + (now_ms - self.at_ms) * self.per_s / 1000
        self.units, self.at_ms = min(refilled, self.per_s * BURST_S), now_ms
        if self.units <= 0:
            return False
        self.units -= units
        return True


@dataclass
class _Part:
    """The sort keys from ``first`` on, up to the next part's first."""

    first: str
    writes: _Bucket
    reads: _Bucket
    hot_since_ms: float = 0
    """When it first refused something; 0 while it has refused nothing."""
    by_key: Counter[str] = field(default_factory=Counter)
    """Units by sort key since then."""


class Partitions:
    """The partitions of one table.

    Args:
        now_ms: the time.
        split_after_s: how long a part must be hot to be split in two. None: never, which is the
            least that DynamoDB promises. It splits within minutes; a scenario that shortens this
            says what holds after those.
    """

    def __init__(self, now_ms: Callable[[], float], *, split_after_s: float | None = None) -> None:
        self._now_ms = now_ms
        self._split_after_ms = None if split_after_s is None else split_after_s * 1000
        self._parts: dict[str, list[_Part]] = {}
        self._table = self._part("", TABLE_UNITS_PER_S, TABLE_UNITS_PER_S)
        self.throttled: Counter[str] = Counter()
        """Refusals by partition key."""
        self.splits = 0

    def takes_write(self, pk: str, sk: str, units: float) -> bool:
        """Take a write of an item, or refuse it."""
        part = self._part_of(pk, sk)
        if part.writes.take(units, self._now_ms()) and self._table.writes.take(
            units, self._now_ms()
        ):
            self._warmed(part, sk, units)
            return True
        return self._refused(pk, sk, part)

    def takes_read(self, pk: str, low: str, high: str, units: float) -> bool:
        """Take a read of a range of sort keys, or refuse it; each part gives its share."""
        parts = self._parts.get(pk) or [self._part_of(pk, low)]
        first = max(bisect_right(parts, low, key=lambda part: part.first) - 1, 0)
        last = max(bisect_right(parts, high, key=lambda part: part.first), first + 1)
        touched = parts[first:last]
        now = self._now_ms()
        for part in touched:
            if not part.reads.take(units / len(touched), now):
                return self._refused(pk, low, part)
            self._warmed(part, low, units / len(touched))
        return self._table.reads.take(units, now)

    def _part_of(self, pk: str, sk: str) -> _Part:
        parts = self._parts.get(pk)
        if parts is None:
            parts = self._parts[pk] = [self._part("")]
        if len(parts) == 1:
            return parts[0]
        return parts[max(bisect_right(parts, sk, key=lambda part: part.first) - 1, 0)]

    def _part(
        self,
        first: str,
        write_units: float = WRITE_UNITS_PER_S,
        read_units: float = READ_UNITS_PER_S,
    ) -> _Part:
        now = self._now_ms()
        writes = _Bucket(write_units, write_units * BURST_S, now)
        return _Part(first, writes, _Bucket(read_units, read_units * BURST_S, now))

    def _warmed(self, part: _Part, sk: str, units: float) -> None:
        if part.hot_since_ms:
            part.by_key[sk] += units  # type: ignore[assignment]  # units may be halves

    def _refused(self, pk: str, sk: str, part: _Part) -> bool:
        self.throttled[pk] += 1
        now = self._now_ms()
        part.hot_since_ms = part.hot_since_ms or now
        part.by_key[sk] += 1
        if self._split_after_ms is None or now - part.hot_since_ms < self._split_after_ms:
            return False
        keys = sorted(part.by_key)
        part.hot_since_ms, counted = 0, part.by_key
        part.by_key = Counter()
        if len(keys) > 1:
            half, so_far = sum(counted.values()) / 2, 0.0
            for key, following in pairwise(keys):
                so_far += counted[key]
                if so_far >= half or following == keys[-1]:
                    self._parts[pk].append(self._part(following))
                    self._parts[pk].sort(key=lambda part: part.first)
                    self.splits += 1
                    break
        return False
