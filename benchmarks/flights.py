"""Deltas like those of the demo: five columns of a flight, changed again and again."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING
from uuid import uuid4

from lakesync.core.clock import stamp
from lakesync.core.delta import Op, make_delta
from lakesync.core.messages import Push

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lakesync.core.delta import Delta

WALL_MS = 1_700_000_000_000
CLIENT = "airline"
BATCH = 100
DISTINCT = 98
"""Rows that one commit touches: with the head and the log entry, a hundred items."""


def batches(count: int, rows: range, *, table: str = "flights", first: int = 0) -> Iterator[Push]:
    """Yield pushes of 100 deltas to 98 distinct rows each, out of these; the first is numbered."""
    op = Op.INSERT if table == "events" else Op.UPDATE
    for number in range(first, first + count):
        chance = random.Random(number)
        places = chance.sample(rows, DISTINCT)
        places += places[: BATCH - DISTINCT]
        deltas = [
            _flight(op, table, place, stamp(WALL_MS + number * BATCH + index), chance)
            for index, place in enumerate(places)
        ]
        yield Push(CLIENT, tuple(enumerate(deltas)))


def _flight(op: Op, table: str, place: int, hlc: int, chance: random.Random) -> Delta:
    columns = {
        "carrier": chance.choice(["UA", "AA", "DL", "B6"]),
        "tailnum": f"N{chance.randrange(10_000, 99_999)}",
        "dep_delay": chance.randrange(-20, 400),
        "air_time": chance.randrange(300) / 2,
        "cancelled": chance.random() < 0.02,
    }
    return make_delta(op, table, f"2013-01-01-UA-{place:07d}", columns, client_id=CLIENT, hlc=hlc)


class Chance:
    """Randomness of a service that never has to race."""

    def jitter(self) -> float:
        """Return no jitter."""
        return 0.0

    def token(self) -> str:
        """Return a name that is never given again."""
        return uuid4().hex
