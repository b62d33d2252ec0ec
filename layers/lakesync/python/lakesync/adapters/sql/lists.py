"""Conditions by lists of values, each list as long as one statement may have it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

LIST_BYTES_MAX: Final = 4 * 1024 * 1024
"""Bytes of values in one list: a quarter of the smallest default of ``max_allowed_packet``."""
LISTED_MAX: Final = 20_000
"""Values in one list of a row look-up: as many as a transaction has deltas."""


def lists(
    column: str, values: Sequence[object], listed_max: int = LISTED_MAX
) -> Iterator[tuple[str, Sequence[object]]]:
    """Yield conditions by a column's values, each with a list as long as allowed."""
    some: list[object] = []
    size = 0
    for value in values:
        if some and (len(some) == listed_max or size > LIST_BYTES_MAX):
            yield f"{column} IN ({', '.join(['%s'] * len(some))})", some
            some, size = [], 0
        some.append(value)
        size += 2 * len(value) if isinstance(value, bytes) else len(str(value))
    if some:
        yield f"{column} IN ({', '.join(['%s'] * len(some))})", some
