"""What goes wrong by itself, and what administrators do meanwhile: drawn from the seed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakesync.core.clock import stamp
from lakesync.core.delta import Op, make_delta
from lakesync.core.messages import Push
from lakesync.wire import lakesync_pb2 as pb
from tests.simulation.network import Request
from tests.simulation.speech import JSON, PROTOBUF

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.clients import Device
    from tests.simulation.scenario import Table
    from tests.simulation.scheduler import Clock
    from tests.simulation.world import World
    from tests.support.gateways import Administrator

PARTS = 10
"""The span is cut into so many parts; each fault that lasts is drawn anew in each."""


class Chaos:
    """Plans everything that happens without anybody's request."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._random = world.stream("chaos")

    def plan(self) -> None:
        world, scenario = self._world, self._world.scenario
        for _ in range(scenario.relanings):
            self._sometime(self._relane)
        for _ in range(scenario.reinstalls):
            self._sometime(self._reinstall)
        for _ in range(scenario.rogue):
            self._sometime(self._rogue_push)
        for part in range(PARTS):
            begin_ms = scenario.span_ms * part // PARTS
            world.later("weather", self._weather, begin_ms)

    def _sometime(self, act: Callable[[], None]) -> None:
        self._world.later("chaos", act, int(self._random.random() * self._world.scenario.span_ms))

    def _weather(self) -> None:
        world, random, faults = self._world, self._random, self._world.faults
        part_ms = world.scenario.span_ms // PARTS
        world.flush_is_broken = random.random() < faults.flush_broken
        for device in world.devices:
            if random.random() < faults.partitions:
                world.count("partition")
                until_ms = world.scheduler.now_ms + int(random.random() * part_ms)
                device.link.down_until_ms = max(device.link.down_until_ms, until_ms)
        for clock, skew_ms in world.clocks():
            if random.random() < faults.clock_steps:
                self._step(clock, skew_ms)

    def _step(self, clock: Clock, skew_ms: int) -> None:
        self._world.count("clock stepped")
        clock.offset_ms = int(self._random.uniform(-1, 1) * skew_ms)

    # --- administrators and users -----------------------------------------------------------------

    def _relane(self) -> None:
        world, random = self._world, self._random
        table = random.choice(world.scenario.tables)
        shard = random.choice(["main", "hot", "cold", f"moved{world.number()}"])

        def place(service: Administrator) -> object:
            return service.place_table("g1", table.name, shard)

        world.functions.administer(place, "re-laned", "not re-laned")

    def _reinstall(self) -> None:
        device: Device = self._random.choice(self._world.devices)
        if not device.done:
            device.reinstall()

    # --- a client that keeps to no rules ----------------------------------------------------------

    def _rogue_push(self) -> None:
        world, random = self._world, self._random
        world.count("rogue push")
        table: Table = random.choice(world.scenario.tables)
        client = "rogue"
        now = stamp(world.scheduler.now_ms)
        made = [
            make_delta(
                random.choice([Op.INSERT, Op.UPDATE]), table.name, f"row{place}",
                {"size": 9_000_000 + world.number(), "title": "from nowhere"},
                client_id=random.choice([client, client, "somebody else"]),
                hlc=max(1, now + random.choice([0, -(1 << 40), 1 << 34])),
            )
            for place in range(random.randint(1, 4))
        ]  # fmt: skip
        push = Push(client, tuple(enumerate(made)), atomic=random.random() < 0.3)
        speech = random.choice([JSON, PROTOBUF])
        body = self._spoilt_json(push) if speech is JSON else self._spoilt(push)
        if random.random() < 0.1:
            body = body[: len(body) // 2]
        request = Request("push", body, {"sub": client}, speech)
        for _ in range(random.choice([1, 1, 2])):
            world.front.take(request, int(random.random() * 1_000), lambda _: None)

    def _spoilt_json(self, push: Push) -> bytes:
        text = JSON.encode_push(push).decode()
        spoil, by = self._random.choice(
            [
                ('"op":"INSERT"', '"op":"UPSERT"'),
                ('"op":"UPDATE"', '"op":7'),
                ('"rowId":"row', '"rowId":"\\u0000'),
                ('"column":"size"', '"column":""'),
                ('"hlc":"', '"hlc":"x'),
                ('"deltaId":"', '"deltaId":"0'),
                ('"clientId":"rogue"', '"clientId":""'),
                ('"deltas":[', '"deltas":[[],'),
                ("", ""),
            ]
        )
        return text.replace(spoil, by).encode()

    def _spoilt(self, push: Push) -> bytes:
        random = self._random
        message = pb.SyncPush.FromString(PROTOBUF.encode_push(push))
        record = random.choice(list(message.deltas))
        match random.randrange(6):
            case 0:
                record.op = pb.DELTA_OP_UNSPECIFIED
            case 1:
                record.delta_id = "0" * 64
            case 2:
                record.row_id = ""
            case 3:
                record.columns[0].value = b"{"
            case 4:
                record.hlc = (1 << 64) - 1
            case _:
                pass
        return message.SerializeToString()
