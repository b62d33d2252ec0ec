"""Names of rows and marks, the time, and chance."""

from __future__ import annotations

from typing import (
    Protocol,
    TypeAlias,
)

RowKey: TypeAlias = tuple[str, str]


"""``(table, row_id)``."""


MarkKey: TypeAlias = tuple[str, str]


"""``(shard, client_id)``."""


class WallClock(Protocol):
    """The wall clock."""

    def __call__(self) -> int:
        """Return the milliseconds since 1970."""
        ...


class Chance(Protocol):
    """Randomness, passed in: it spreads retries and names commits."""

    def jitter(self) -> float:
        """Return a number in [0, 1)."""
        ...

    def token(self) -> str:
        """Return a unique name of at most 36 characters."""
        ...
