"""64 writers push to one table as fast as they are answered: an edit each, of rows of their own."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from benchmarks.entries import at_least, at_most, sized
from benchmarks.scale.devices import Device, declare, push_function, push_until_taken
from benchmarks.scale.measures import Answers
from benchmarks.scale.world import World

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.entries import Entry
    from benchmarks.scale.lambdas import Function
    from lakesync.compat.follower_deltas import FollowingPushes
    from lakesync.core.clock import Stamp

GATEWAY: Final = "busy"
WRITERS: Final = 64
WARM_UP_MS: Final = sized(4_000, 200)
MEASURED_MS: Final = sized(6_000, 300)


def start_writers(
    world: World,
    answers: Answers,
    function: Function[FollowingPushes],
    on_accepted: Callable[[Stamp], None] = lambda _: None,
) -> None:
    """Let all writers begin; ``on_accepted`` hears the stamp of each push as it is answered."""

    def write(device: Device) -> None:
        while True:
            push = device.edit(f"{device.number}-{device.edits}")
            push_until_taken(answers, function, device, push, on_accepted)

    for number in range(WRITERS):
        world.spawn(partial(write, Device(world, GATEWAY, number)), after_ms=number)


def run() -> list[Entry]:
    """Measure, and give the figures."""
    with World(1) as world:
        function = push_function(world)
        declare(world, function, GATEWAY)
        answers = Answers(world, WARM_UP_MS)
        start_writers(world, answers, function)
        world.run_until(WARM_UP_MS)
        before = world.dynamo.bill.copy()
        world.run_until(WARM_UP_MS + MEASURED_MS)
        bill = world.dynamo.bill.since(before)
    per_s = answers.count / MEASURED_MS * 1000
    tries = bill.calls["TransactWriteItems"] / max(answers.count, 1)
    refused = answers.refused
    detail = (
        f"{WRITERS} writers, one-delta pushes of new rows of one table; "
        f"{bill.write_units / max(answers.count, 1):.1f} write units a push, "
        f"median {answers.percentile_ms(0.5):.0f} ms, {refused} refused; "
        f"conflicts {bill.refusals['TransactionConflict']}, lost conditions "
        f"{bill.refusals['ConditionalCheckFailed']}, throttled {bill.refusals['ThrottlingError']}"
    )
    p99 = at_most(
        "scale_writers64_p99_ms", answers.percentile_ms(0.99), "ms", 250, f"{refused} refused"
    )
    return [
        at_least("scale_writers64_pushes_per_s", per_s, "1/s", 1_500, detail),
        at_most("scale_writers64_tries_per_push", tries, "", 1.3, "transactions a push taken"),
        p99 | {"holds": p99["holds"] and not refused},
    ]
