"""16 writers push edits of one row as fast as they are answered, each of a column of its own.

Of one column, what comes late would lose to what is newer, and not be written at all.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from benchmarks.entries import at_least, sized
from benchmarks.scale.devices import Device, declare, push_function, push_until_taken
from benchmarks.scale.measures import Answers
from benchmarks.scale.world import World

if TYPE_CHECKING:
    from benchmarks.entries import Entry

GATEWAY: Final = "row"
WRITERS: Final = 16
WARM_UP_MS: Final = sized(3_000, 200)
MEASURED_MS: Final = sized(20_000, 500)
STARVED_SHARE: Final = 0.25
"""A writer that gets less than this part of its fair share counts as starved."""


def run() -> list[Entry]:
    """Measure, and give the figure."""
    with World(2) as world:
        function = push_function(world)
        declare(world, function, GATEWAY)
        answers = Answers(world, WARM_UP_MS)

        def write(device: Device) -> None:
            while True:
                device.edits += 1
                push = device.push_of("the-row", {f"by{device.number}": device.edits})
                push_until_taken(answers, function, device, push)

        for number in range(WRITERS):
            world.spawn(partial(write, Device(world, GATEWAY, number)), after_ms=number)
        world.run_until(WARM_UP_MS + MEASURED_MS)
    per_s = answers.count / MEASURED_MS * 1000
    fair = answers.count / WRITERS
    counts = [answers.by_caller[number] for number in range(WRITERS)]
    starved = sum(count < fair * STARVED_SHARE for count in counts)
    detail = (
        f"{WRITERS} writers, one row; {starved} of them starved (they had {min(counts)} to "
        f"{max(counts)} pushes each), {answers.refused} refused, median "
        f"{answers.percentile_ms(0.5):.0f} ms, p99 {answers.percentile_ms(0.99):.0f} ms"
    )
    entry = at_least("scale_same_row_pushes_per_s", per_s, "1/s", 30, detail)
    return [entry | {"holds": entry["holds"] and not starved}]
