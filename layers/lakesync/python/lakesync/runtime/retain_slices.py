"""Retention of many gateways: slices of them, in which most are done in one call.

    list       the slices: ranges of gateway ids, of which each is some of all gateways
    slice      does all tasks for the gateways of a slice, one after the other, until its time is up
    names      the gateways of a slice, for when the call that did it died
    choose     of all that a slice did not finish, what this execution does one by one

A gateway that fails, that takes longer than a call, or whose checkpoint is built from the lake, is
done one by one afterwards, with retries and reports. So one gateway never makes a slice fail.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from lakesync.errors import GatewayDeleted, LakeSyncError, ValidationFailed
from lakesync.runtime import observe

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from lakesync.ports import Configurations, WallClock
    from lakesync.runtime.delete_gateway import Answer, HasTime
    from lakesync.runtime.retain import Retention

SLICE_TASKS: Final = ("list", "slice", "names", "choose")
SLICE_GATEWAYS: Final = 100
"""Gateways of a slice, unless `SLICES_MAX` makes them more: idle ones take some 30 s."""
SLICES_MAX: Final = 400
"""Slices of one execution: its history takes 25,000 events, of which a slice makes 13, and 7 more
for each call that it takes."""
SINGLES_MAX: Final = 250
"""Gateways that one execution does one by one: each makes 55 events. If there are more, they take
turns.
"""


class Slices:
    """What is done for many gateways.

    Args:
        buffer: lists the gateways.
        retention: does the tasks of one.
        wall_clock: decides whose turn it is.
        every_ms: how often retention runs.
    """

    def __init__(
        self,
        buffer: Configurations,
        retention: Retention,
        *,
        wall_clock: WallClock,
        every_ms: int,
    ) -> None:
        self._buffer = buffer
        self._retention = retention
        self._wall_clock = wall_clock
        self._every_ms = every_ms

    def do(self, event: Mapping[str, Any], has_time: HasTime) -> Answer:
        """Do one of `SLICE_TASKS`.

        Raises:
            ValidationFailed: the event is none that the state machine makes.
        """
        task = event.get("task")
        after, until = event.get("after", ""), event.get("until", "")
        if not isinstance(after, str) or not isinstance(until, str):
            raise ValidationFailed("a slice is given by two gateway ids", field="after")
        if task == "list":
            return {"slices": self.slices()}
        if task == "slice":
            return self.slice(after, until, has_time)
        if task == "names":
            return {"gateways": self.names(after, until)}
        return self.choose(_listed(event.get("results", [])))

    def slices(self) -> list[dict[str, str]]:
        """Return the slices: whatever gateways come meanwhile, each is in one of them."""
        every = self._buffer.gateways()
        size = max(SLICE_GATEWAYS, -(-len(every) // SLICES_MAX))
        ends = [*every[size - 1 : -1 : size], ""]
        return [
            {"after": after, "until": until}
            for after, until in zip(["", *ends], ends, strict=False)
        ]

    def names(self, after: str, until: str) -> list[str]:
        """Return the gateways behind one and up to another; to the last one, if that is empty."""
        every = self._buffer.gateways()
        return [name for name in every if name > after and (name <= until or not until)]

    def slice(self, after: str, until: str, has_time: HasTime) -> Answer:
        """Do all tasks for the gateways of a slice until the time is up.

        Returns:
            The gateway after which to continue, whether all are done, and those that are not.
        """
        left: list[str] = []
        for gateway in self.names(after, until):
            if not has_time():
                return {"after": after, "gateways": left, "finished": False}
            if not self._is_done(gateway, has_time):
                left.append(gateway)
            after = gateway
        return {"after": after, "gateways": left, "finished": True}

    def choose(self, results: Sequence[Mapping[str, Any]]) -> Answer:
        """Return the unfinished gateways whose turn it is, and how many slices were given up."""
        left = sorted({name for result in results for name in _listed(result["gateways"])})
        turns = -(-len(left) // SINGLES_MAX) or 1
        turn = self._wall_clock() // self._every_ms % turns
        given_up = sum(bool(result["failed"]) for result in results)
        return {"gateways": left[turn::turns], "failed": given_up}

    def _is_done(self, gateway: str, has_time: HasTime) -> bool:
        """Do all tasks for a gateway; False if it needs a flow of its own."""
        try:
            if self._retention.plan(gateway, "", has_time)["flushed"]:
                return False
            tasks = (self._retention.build, self._retention.trim, self._retention.forget,
                     self._retention.clean)  # fmt: skip
            return all(_finished(task, gateway, has_time) for task in tasks)
        except GatewayDeleted:
            return True  # and deletion removes all that is stored of it
        except LakeSyncError as error:
            observe.failure(error, task="slice", gateway=gateway)
        except Exception as error:  # noqa: BLE001 - one gateway's bug must not cost its neighbours
            observe.bug(error, gateway=gateway)
        return False


def _finished(task: Callable[[str, str, HasTime], Answer], gateway: str, has_time: HasTime) -> bool:
    """Do a task, from place to place, until it is finished or the time is up."""
    place = ""
    while True:
        report = task(gateway, place, has_time)
        if report["finished"]:
            return True
        if not has_time():
            return False
        place = str(report.get("place", ""))


def _listed(value: Any) -> list[Any]:
    """Return a list: JSONata gives a list of one as its element."""
    return value if isinstance(value, list) else [value]
