"""How a gateway's log is split: tables are grouped into shards, and a shard's log has lanes.

A shard groups tables that are read together; every table is in the default one unless it is placed
elsewhere. A lane is one chain of log entries with a head. A writer of a shard may use any of its
open lanes, so a lane orders only its own entries: changes of a row are serialised by the row's own
version.
Laws B6, B7: ``docs/spec/commit.md``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from lakesync.errors import ValidationFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from lakesync.core.clock import Stamp

DEFAULT_SHARD: Final = "main"
MAIN_LANE: Final = DEFAULT_SHARD
"""The first lane of the default shard. It is never closed; its head lists the other open lanes."""
LANES_MAX: Final = 64
"""Lanes of one shard. A lane commits about 40 times a second, limited by the time of a transaction.
"""
SHARDS_MAX: Final = 40
"""Shards of a gateway: the heads of 40 cost two read units, and are listed in one. With long names
the limit may be lower: `lakesync.log.lanes.with_table_placed`."""
_SHARD = re.compile(r"[a-z][a-z0-9_-]{0,31}")
RESERVED_SHARDS: Final = frozenset({"config", "destinations", "head"})
"""Names that end keys of a gateway's own items. IAM policies and stream filters match such endings,
and the keys of a shard end with the shard's name."""


def check_shard(name: str) -> str:
    """Return a shard's name, if it is valid.

    Raises:
        ValidationFailed: it is not.
    """
    if _SHARD.fullmatch(name) is None:
        raise ValidationFailed(
            f"{name[:40]!r} is not a shard name: a lower-case letter, then up to 31 letters,"
            " digits, _ or -",
            field="shard",
        )
    if name in RESERVED_SHARDS:
        raise ValidationFailed(
            f"{name!r} is a reserved name: give the shard another, such as {name + '_tables'!r}",
            field="shard",
        )
    return name


def lane_name(shard: str, number: int) -> str:
    """Return the name of a shard's lane, by its number from 0."""
    return f"{shard}.{number}" if number else shard


def lane_shard(lane: str) -> str:
    """Return the shard of a lane."""
    return lane.partition(".")[0]


def lane_number(lane: str) -> int:
    """Return the number of a lane within its shard."""
    return int(lane.partition(".")[2] or 0)


@dataclass(frozen=True, slots=True)
class Layout:
    """The shard of every table of a gateway; tables not named here are in the default shard."""

    tables: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    moves: int = 0
    """How often a table was moved: what is kept by shard may have to be read from other shards too.
    """
    former: frozenset[str] = frozenset()
    """Shards that tables were moved out of."""

    def shard_of(self, table: str) -> str:
        """Return the shard of a table."""
        return self.tables.get(table, DEFAULT_SHARD)

    def shards(self) -> tuple[str, ...]:
        """Return all shards that contain tables, or did once, in a fixed order."""
        return tuple(sorted({DEFAULT_SHARD, *self.tables.values()} | self.former))

    def readable(self, may_see: Callable[[str], bool]) -> frozenset[str]:
        """Return the shards that contain, or may have contained, a table that may be seen.

        Tables without a placement are in the default shard, and a former shard may contain any.
        """
        placed = {shard for table, shard in self.tables.items() if may_see(table)}
        return frozenset({DEFAULT_SHARD} | self.former | placed)

    def moved(self, table: str, shard: str) -> Layout:
        """Return the layout with one table moved.

        Raises:
            ValidationFailed: it is no shard name, or there would be too many shards.
        """
        tables = {**self.tables, table: check_shard(shard)}
        former = self.former | {self.shard_of(table)}
        layout = Layout(MappingProxyType(tables), self.moves + 1, former)
        if len(layout.shards()) > SHARDS_MAX:
            raise ValidationFailed(f"a gateway may have {SHARDS_MAX} shards", field="shard")
        return layout


class LaneCount(NamedTuple):
    """Lanes of one shard: the first ``open`` of them are open, ``used`` were open at some time."""

    open: int = 0
    used: int = 0


@dataclass(frozen=True, slots=True)
class Lanes:
    """Which lanes of a gateway are open: stored in the head of the main lane, and read with it."""

    counts: Mapping[str, LaneCount] = field(
        default_factory=lambda: MappingProxyType({DEFAULT_SHARD: LaneCount(1, 1)})
    )
    changes: int = 0
    """How often this was changed. A writer that changes it names the count that it has read."""
    quiet: Stamp = 0
    """No closed lane has an entry above this stamp."""
    paused_until_ms: int = 0
    """No lane is opened before this time, because the configuration is being changed."""
    more: str = field(default="", compare=False)
    """Text that a later release appended: the condition of a change compares the whole text."""

    def open(self) -> list[str]:
        """Return the names of all open lanes, the main lane first."""
        return list(self._names(lambda count: range(count.open)))

    def used(self) -> list[str]:
        """Return the names of all lanes that were ever open, the main lane first."""
        return list(self._names(lambda count: range(count.used)))

    def of(self, shard: str) -> LaneCount:
        """Return how many lanes a shard has."""
        return self.counts.get(shard, LaneCount())

    def is_open(self, lane: str) -> bool:
        """Return whether a lane is open."""
        return lane_number(lane) < self.of(lane_shard(lane)).open

    def opening(self, shard: str, open_count: int) -> Lanes:
        """Return the lanes with at least so many of a shard open."""
        before = self.of(shard)
        open_count = max(before.open, min(open_count, LANES_MAX))
        count = LaneCount(open_count, max(before.used, open_count))
        counts = MappingProxyType({**self.counts, shard: count})
        return replace(self, counts=counts, changes=self.changes + 1)

    def closing(self, open_counts: Mapping[str, int], quiet: Stamp) -> Lanes:
        """Return the lanes with only the first so many of some shards open.

        Args:
            open_counts: by shard, how many lanes stay open.
            quiet: no lane that is closed by this has an entry above.
        """
        counts = {
            shard: LaneCount(min(count.open, open_counts.get(shard, count.open)), count.used)
            for shard, count in self.counts.items()
        }
        return replace(
            self,
            counts=MappingProxyType(counts),
            changes=self.changes + 1,
            quiet=max(self.quiet, quiet),
        )

    def paused(self, until_ms: int) -> Lanes:
        """Return the lanes with no lane to be opened for a while."""
        return replace(self, changes=self.changes + 1, paused_until_ms=until_ms)

    def to_text(self) -> str:
        """Return the stored form; empty before the first change."""
        if not self.changes:
            return ""
        counts = ",".join(f"{shard}:{c.open}/{c.used}" for shard, c in self.counts.items())
        return f"{self.changes};{self.quiet:x};{self.paused_until_ms};{counts}{self.more}"

    def _names(self, numbers: Callable[[LaneCount], range]) -> Iterator[str]:
        shards = sorted(self.counts, key=lambda shard: (shard != DEFAULT_SHARD, shard))
        for shard in shards:
            yield from (lane_name(shard, number) for number in numbers(self.counts[shard]))


def lanes_from_text(text: str) -> Lanes:
    """Read what `Lanes.to_text` wrote."""
    if not text:
        return ONE_LANE
    changes, quiet, paused, counts, *more = text.split(";")
    by_shard = {}
    for item in counts.split(","):
        shard, _, count = item.partition(":")
        is_open, _, used = count.partition("/")
        by_shard[shard] = LaneCount(int(is_open), int(used))
    behind = "".join(f";{part}" for part in more)
    return Lanes(MappingProxyType(by_shard), int(changes), int(quiet, 16), int(paused), behind)


ONE_LANE: Final = Lanes()
"""The lanes of a gateway that never needed more than one."""
