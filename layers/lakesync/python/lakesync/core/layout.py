"""Which shard a row's commits go to: tables are mapped to shards, a hot table is split into lanes.

Each shard has one head, and commits to one shard are strictly ordered. Row states are stored by
table and row id alone, so a change of layout moves no state; it changes only which head a later
commit must win. Law B6: ``docs/spec/commit.md``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Final
from zlib import crc32

from lakesync.errors import ValidationFailed

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULT_SHARD: Final = "main"
LANES_MAX: Final = 16
"""Lanes of one table: each is one more head that every pull reads."""
SHARDS_MAX: Final = 32
"""All shards of a gateway: one transaction must be able to reach every head."""
_SHARD = re.compile(r"[a-z][a-z0-9_]{0,31}")


@dataclass(frozen=True, slots=True)
class Placement:
    """Where one table goes: a shard, and how many lanes it is split into."""

    shard: str = DEFAULT_SHARD
    lanes: int = 1

    def __post_init__(self) -> None:
        if _SHARD.fullmatch(self.shard) is None:
            raise ValidationFailed(
                f"{self.shard[:40]!r} is no shard name: a lower-case letter, then up to 31 letters,"
                " digits or _",
                field="shard",
            )
        if not 1 <= self.lanes <= LANES_MAX:
            raise ValidationFailed(f"lanes must be 1 to {LANES_MAX}", field="lanes")

    def shards(self) -> tuple[str, ...]:
        """Give the names of the shards that the table's rows go to."""
        if self.lanes == 1:
            return (self.shard,)
        return tuple(f"{self.shard}.{lane}" for lane in range(self.lanes))


@dataclass(frozen=True, slots=True)
class Layout:
    """The placement of every table of a gateway; tables not named here go to the default shard."""

    tables: Mapping[str, Placement] = field(default_factory=lambda: MappingProxyType({}))
    former: frozenset[str] = frozenset()
    """Shards of earlier layouts, whose log may still be read."""
    moves: int = 0
    """How often a table was placed anew: what is kept by shard may be looked for in others."""
    _shards: tuple[str, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        named = {shard for placement in self.tables.values() for shard in placement.shards()}
        shards = tuple(sorted(named | {DEFAULT_SHARD} | self.former))
        # Every pull and push asks for them.
        object.__setattr__(self, "_shards", shards)

    def shard_of(self, table: str, row_id: str) -> str:
        """Give the shard that orders a row; the same row always gets the same one."""
        placement = self.tables.get(table)
        if placement is None:
            return DEFAULT_SHARD
        if placement.lanes == 1:
            return placement.shard
        return f"{placement.shard}.{crc32(row_id.encode()) % placement.lanes}"

    @property
    def has_lanes(self) -> bool:
        """Tell whether any table is split into several lanes."""
        return any(placement.lanes > 1 for placement in self.tables.values())

    def laned(self, table: str) -> bool:
        """Tell whether the table is split into several lanes."""
        placement = self.tables.get(table)
        return placement is not None and placement.lanes > 1

    def shards(self) -> tuple[str, ...]:
        """Give every shard whose log a reader must read, in a fixed order."""
        return self._shards

    def moved(self, table: str, placement: Placement) -> Layout:
        """Give the layout with one table placed anew; shards that were in use stay readable.

        Raises:
            ValidationFailed: there would be too many shards.
        """
        tables = {**self.tables, table: placement}
        former = self.former | frozenset(self.shards())
        layout = Layout(MappingProxyType(tables), former, self.moves + 1)
        if len(layout.shards()) > SHARDS_MAX:
            raise ValidationFailed(f"a gateway may have {SHARDS_MAX} shards and lanes in all")
        return layout
