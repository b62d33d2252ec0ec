"""The clients: a feed, an airline and an airport, each with its own file and its own wrong clock.

The story's own time runs over ten minutes that are just past, so that minutes need not be waited
for; each device shows that time wrongly by its skew. Stamps are of the past then, which the
protocol allows without bound (design: only the future is bounded, by 5 s).
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from lakesync.client import Client
from tools.demo.flights import TABLE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from lakesync.ports import Transport
    from tools.demo.flights import Week

MINUTE_MS: Final = 60_000
PUBLISHED_MIN: Final = -12.0
"""When the feed publishes, in minutes of the story: 0 is now."""
SITTINGS_MIN: Final = (-9.0, -1.0)
"""Between these the airline and the airport work, a day of flights at a time."""
SKEWS_MIN: Final = {"feed": -5.0, "airline": -4.0, "airport": 0.05}
"""How wrong each device's clock is, in minutes: two are slow, one is three seconds fast."""


@dataclass
class DeviceTime:
    """A device's wall clock: real time, moved to the story's time, wrong by a skew."""

    skew_min: float
    story_min: float = 0.0

    def __call__(self) -> int:
        """Return the milliseconds since 1970, as this device believes."""
        return time.time_ns() // 1_000_000 + round((self.story_min + self.skew_min) * MINUTE_MS)


@dataclass
class Actor:
    """One client and its clock."""

    name: str
    client: Client
    clock: DeviceTime
    stamps: dict[str, int] = field(default_factory=dict)
    """The stamp of its first edit of each day, to know later whose was later."""


def sitting_min(number: int, of: int) -> float:
    """Return when a sitting begins, in minutes of the story."""
    first, last = SITTINGS_MIN
    return first + (last - first) * number / max(of - 1, 1)


def make_actor(name: str, folder: Path, transport: Transport) -> Actor:
    """Make a client with an empty file."""
    clock = DeviceTime(SKEWS_MIN.get(name, 0.0))
    # NORMAL: every edit is a commit, without waiting for the disk each time. Nobody pulls the plug
    # on a demo, and twelve thousand waits would be most of it on a slow disk.
    client = Client(
        folder / f"{name}.db",
        client_id=name,
        transport=transport,
        wall_clock=clock,
        durability="NORMAL",
    )
    return Actor(name, client, clock)


def restarted(actor: Actor, folder: Path, transport: Transport) -> Actor:
    """Start a client again on its file, as an app does that gets another token."""
    actor.client.close()
    again = make_actor(actor.name, folder, transport)
    again.stamps.update(actor.stamps)
    return again


def publish(feed: Actor, week: Week) -> int:
    """Let the feed insert the timetable; returns how many rows."""
    feed.clock.story_min = PUBLISHED_MIN
    timetable = week.timetable()
    for row_id, columns in timetable.items():
        feed.client.insert(TABLE, row_id, columns).unwrap()
    return len(timetable)


def work_as_airline(airline: Actor, week: Week, show: Callable[[str], None]) -> tuple[int, int]:
    """Let the airline write its flights' departures day by day, and delete what never left.

    Returns:
        How many edits, and how many of them are deletes.
    """
    edits = deletes = 0
    for number, day in enumerate(week.days):
        airline.clock.story_min = sitting_min(number, len(week.days))
        for row_id, columns in week.departures(day).items():
            delta = airline.client.update(TABLE, row_id, columns).unwrap()
            airline.stamps.setdefault(day, delta.hlc)
            edits += 1
        for row_id in week.cancelled(day):
            airline.client.delete(TABLE, row_id).unwrap()
            deletes += 1
        show(f"{edits + deletes:,} departures")
    return edits + deletes, deletes


def work_as_airport(airport: Actor, week: Week, show: Callable[[str], None]) -> int:
    """Let the airport write its flights' arrivals, the last day first.

    So each of the two is the later one on some days.
    """
    edits = 0
    for number, day in enumerate(reversed(week.days)):
        airport.clock.story_min = sitting_min(number, len(week.days))
        for row_id, columns in week.arrivals(day).items():
            delta = airport.client.update(TABLE, row_id, columns).unwrap()
            airport.stamps.setdefault(day, delta.hlc)
            edits += 1
        show(f"{edits:,} arrivals")
    return edits


def later_days(airline: Actor, airport: Actor, days: Sequence[str]) -> list[str]:
    """Return the days on which the airline's stamps are the later ones, whatever the true time."""
    return [day for day in days if airline.stamps[day] > airport.stamps[day]]
