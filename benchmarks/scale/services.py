"""S3, SQS and threads as functions meet them, in simulated time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from benchmarks.scale import latency
from tests.simulation.scheduler import Event

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Self

    from benchmarks.scale.world import World

R = TypeVar("R")
BATCH_ENCODE_CPU_MS: Final = 4.0
"""Processor time of a small batch: its rows to Parquet, its claim and its announcement."""


class Objects:
    """`lakesync.ports.ObjectStore` on a model of S3: it takes objects, and counts them."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._random = world.stream("s3")
        self.puts = 0

    def put_object(self, key: str, body: bytes, content_type: str) -> None:
        """Store an object."""
        del key, body, content_type
        self.puts += 1
        self._world.sleep_ms(BATCH_ENCODE_CPU_MS / 2 + latency.S3_PUT.draw_ms(self._random))


class Queue:
    """A queue of SQS: messages go to who takes them, at once.

    Args:
        world: the time it lives in.
        take: is told each message that came.
    """

    def __init__(self, world: World, take: Callable[[str], None] = lambda _: None) -> None:
        self._world = world
        self._take = take
        self._random = world.stream("sqs")

    def send(self, body: str) -> None:
        """Hand a message over."""
        self.send_all([body])

    def send_all(self, bodies: Sequence[str]) -> None:
        """Hand messages over, in one call."""
        self._world.sleep_ms(latency.SQS_SEND.draw_ms(self._random))
        for body in bodies:
            self._take(body)


class Deliveries:
    """How Lambda takes messages from a queue: in batches, so many at once.

    Args:
        world: the time it lives in.
        invoke: handles a batch; it must not fail.
        batch_max: messages of a batch.
        concurrency_max: batches at once.
    """

    def __init__(
        self,
        world: World,
        invoke: Callable[[list[str]], None],
        *,
        batch_max: int,
        concurrency_max: int,
    ) -> None:
        self._world = world
        self._invoke = invoke
        self._batch_max = batch_max
        self._concurrency_max = concurrency_max
        self._waiting: list[str] = []
        self._running = 0
        self._is_polled = False
        self._random = world.stream("poll")

    def take(self, body: str) -> None:
        """Let a message wait for a poll: each takes what has gathered."""
        self._waiting.append(body)
        if not self._is_polled:
            self._is_polled = True
            self._world.later(latency.SQS_POLL.draw_ms(self._random), self._poll)

    def _poll(self) -> None:
        self._is_polled = False
        while self._waiting and self._running < self._concurrency_max:
            self._running += 1
            self._world.spawn(self._work)

    def _work(self) -> None:
        while self._waiting:
            batch = self._waiting[: self._batch_max]
            del self._waiting[: self._batch_max]
            self._invoke(batch)
        self._running -= 1


class _Pending(Generic[R]):
    """What a task of a pool gives once it is done."""

    def __init__(self, world: World, act: Callable[[], R]) -> None:
        self._act = act
        self._result: list[R] = []
        self._error: Exception | None = None
        self.done = Event(world.scheduler)

    def run(self) -> None:
        """Do it."""
        try:
            self._result.append(self._act())
        except Exception as error:  # noqa: BLE001 - it is raised where the result is asked for
            self._error = error
        self.done.set()

    def result(self) -> R:
        """Wait for it, and give what it gave, or raise what it raised."""
        self.done.wait()
        if self._error is not None:
            raise self._error
        return self._result[0]


class TaskPool:
    """`concurrent.futures.ThreadPoolExecutor`, with tasks in simulated time for threads."""

    def __init__(self, world: World, max_workers: int) -> None:
        self._world = world
        self._max_workers = max_workers
        self._running = 0
        self._waiting: list[_Pending[Any]] = []
        self._all: list[_Pending[Any]] = []

    def submit(self, act: Callable[..., R], *arguments: Any, **named: Any) -> _Pending[R]:
        """Let something be done as soon as a worker is free."""
        pending = _Pending(self._world, lambda: act(*arguments, **named))
        self._all.append(pending)
        if self._world.dynamo.is_instant:
            pending.run()
            return pending
        self._waiting.append(pending)
        if self._running < self._max_workers:
            self._running += 1
            self._world.spawn(self._work)
        return pending

    def map(self, act: Callable[..., R], *arguments: Any) -> Iterator[R]:
        """Do something for each of some values; returns the results in their order."""
        started = [self.submit(act, *values) for values in zip(*arguments, strict=False)]
        return (pending.result() for pending in started)

    def _work(self) -> None:
        while self._waiting:
            self._waiting.pop(0).run()
        self._running -= 1

    def shutdown(self, *, wait: bool = True) -> None:
        """Wait for all that was submitted."""
        if wait:
            for pending in self._all:
                pending.done.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
