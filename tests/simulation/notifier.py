"""The stream of the buffer's table: its batches go to processes of ``functions/notify``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from lakesync.gateway.broadcast import TURN_MS_MAX
from tests.simulation.network import GATEWAY
from tests.simulation.socket_functions import Notifying

if TYPE_CHECKING:
    from tests.simulation.world import World

STREAM_MS: Final = 600
"""How long a change takes to the function, at the most, while all goes well."""
TRIED_AGAIN_MS: Final = 60_000
"""How long Lambda tries a batch again."""
LOOKS_MAX: Final = 1_000_000
"""How often a process finds that it has time, while it has."""
PROCESSES_MAX: Final = 2
"""Batches that are worked on at once: the shards of a stream."""


class Notifier:
    """Hands the stream's batches to processes, and again for a minute if they fail."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._random = world.stream("stream")
        self._records: list[dict[str, Any]] = []
        self._pool: list[Notifying] = []
        self._made = 0

    def committed(self, stamp: int) -> None:
        self._add(f"{GATEWAY}|head", "main", {"l": {"N": str(stamp)}})

    def configured(self) -> None:
        """Bring another configuration."""
        self._add(f"{GATEWAY}|config", "config", {"v": {"N": "1"}})

    def revoked(self, kind: str, name: str) -> None:
        self._add(f"|revoked|{GATEWAY}", f"{kind}|{name}", {"at": {"N": "1"}})

    def sweep(self) -> None:
        self._hand({}, 0)

    def stop(self) -> None:
        for notifying in self._pool:
            self._world.scheduler.kill(notifying.process)
        self._pool.clear()

    def _add(self, pk: str, sk: str, image: dict[str, Any]) -> None:
        world = self._world
        if not world.scenario.sockets:
            return
        name = world.unique()
        keys = {"pk": {"S": pk}, "sk": {"S": sk}}
        change = {"Keys": keys, "NewImage": image, "SequenceNumber": name}
        self._records.append({"eventID": name, "dynamodb": change})
        if len(self._records) == 1:
            world.later("stream", self._batch, int(20 + self._random.random() * STREAM_MS))

    def _batch(self) -> None:
        records, self._records = self._records, []
        until_ms = self._world.scheduler.now_ms + TRIED_AGAIN_MS
        self._hand({"Records": records}, until_ms)

    def _hand(self, event: dict[str, Any], until_ms: int) -> None:
        """Hand an event to a process, and again until a moment if that fails."""
        notifying = self._free()
        if notifying is None or self._world.upkeep.is_down:
            self._again(event, until_ms)
            return
        world, process, is_done = self._world, notifying.process, False

        def work() -> None:
            nonlocal is_done
            try:
                answer = notifying.handle(event, self._looks())
                if answer.get("batchItemFailures"):
                    world.count("broadcast handed on")
                    self._again(event, until_ms)
            except Exception as error:  # noqa: BLE001 - Lambda tries it again, whatever it was
                world.note(process.name, "%r", error)
                self._again(event, until_ms)
            is_done, notifying.busy = True, False

        def died() -> None:
            if not is_done:
                world.count("notify died")
                self._again(event, until_ms)

        def time_out() -> None:
            if not is_done:
                world.crash(process, "took too long")

        notifying.busy = True
        process.on_kill = [died]
        world.scheduler.spawn(process, process.name, work)
        world.later("time-out", time_out, TURN_MS_MAX)

    def _looks(self) -> int:
        """Return how often a process finds that it has time: sometimes not for all connections."""
        if self._random.random() >= self._world.faults.short_of_time:
            return LOOKS_MAX
        return 1 + int(self._random.random() * 6)

    def _again(self, event: dict[str, Any], until_ms: int) -> None:
        if self._world.scheduler.now_ms < until_ms:
            self._world.later("stream", lambda: self._hand(event, until_ms), 1_000)
        elif event:
            self._world.count("batch of the stream given up")

    def _free(self) -> Notifying | None:
        self._pool[:] = [each for each in self._pool if each.process.alive]
        for notifying in self._pool:
            if not notifying.busy:
                return notifying
        if len(self._pool) >= PROCESSES_MAX:
            return None
        self._made += 1
        self._pool.append(Notifying(self._world, f"notify#{self._made}"))
        return self._pool[-1]
