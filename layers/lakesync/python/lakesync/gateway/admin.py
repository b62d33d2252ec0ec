"""Administration of one gateway: its schemas, its layout, its state in numbers."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from lakesync.core.clock import stamp, stamp_ms
from lakesync.core.config import TABLES_MAX
from lakesync.core.rules_json import rules_from_json
from lakesync.core.schema import evolve, schema_from_json
from lakesync.errors import Conflict, Contention, LakeSyncError, Unavailable
from lakesync.gateway.pressure import unflushed_bytes
from lakesync.ports import HeadMoved
from lakesync.result import Err, Ok, Result

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakesync.core.config import GatewayConfig
    from lakesync.core.layout import Placement
    from lakesync.core.rules import SyncRules
    from lakesync.core.schema import TableSchema
    from lakesync.gateway.commit import Chance
    from lakesync.ports import Buffer, WallClock

_TRIES_MAX = 60
_BACK_OFF_MS = 40
_LEAD_MS = 100


class AdminService:
    """Changes and shows what is declared of a gateway."""

    def __init__(
        self,
        buffer: Buffer,
        *,
        wall_clock: WallClock,
        sleep_ms: Callable[[float], None],
        chance: Chance,
    ) -> None:
        self._buffer = buffer
        self._wall_clock = wall_clock
        self._sleep_ms = sleep_ms
        self._chance = chance

    def register_schema(self, gateway: str, body: object) -> Result[TableSchema, LakeSyncError]:
        """Register a table's schema, or evolve the one it has; safe to repeat.

        Returns:
            The schema in force, with its version; or ``VALIDATION_ERROR``, ``SCHEMA_ERROR``,
            ``CONFLICT`` with the way to get there instead.
        """
        try:
            wanted = schema_from_json(body)
            config = self._change(gateway, lambda held: _with_schema(held, wanted))
            return Ok(config.schemas[wanted.table])
        except LakeSyncError as error:
            return Err(error)

    def save_rules(self, gateway: str, body: object) -> Result[SyncRules, LakeSyncError]:
        """Put sync rules in force for every push and pull from now on; safe to repeat.

        Returns:
            The rules; or ``SYNC_RULES_ERROR``, which names every fault.
        """
        try:
            config = self._change(gateway, lambda held: _with_rules(held, body), rules=True)
            return Ok(config.rules)
        except LakeSyncError as error:
            return Err(error)

    def rules(self, gateway: str) -> Result[SyncRules, LakeSyncError]:
        """Give the sync rules in force."""
        try:
            return Ok(self._buffer.config(gateway).rules)
        except LakeSyncError as error:
            return Err(error)

    def place_table(
        self, gateway: str, table: str, placement: Placement
    ) -> Result[GatewayConfig, LakeSyncError]:
        """Put a table into a shard, split into lanes, while pushes go on; safe to repeat.

        Row states stay where they are: only which head orders later commits changes, for all
        writers at once, because every head carries the configuration's version.
        """

        def placed(held: GatewayConfig) -> GatewayConfig:
            if held.layout.tables.get(table) == placement:
                return held
            return replace(held, layout=held.layout.moved(table, placement))

        try:
            return Ok(self._change(gateway, placed))
        except LakeSyncError as error:
            return Err(error)

    def metrics(self, gateway: str) -> Result[dict[str, object], LakeSyncError]:
        """Give a gateway's buffer in numbers: one read unit a shard, and two."""
        try:
            config = self._buffer.config(gateway)
            heads = self._buffer.heads(gateway, config.layout.shards())
            state = self._buffer.flush_state(gateway)
        except LakeSyncError as error:
            return Err(error)
        oldest = [head.oldest_unflushed for head in heads.values() if head.oldest_unflushed]
        age_ms = self._wall_clock() - stamp_ms(min(oldest)) if oldest else 0
        return Ok(
            {
                "gateway": gateway,
                "configVersion": config.version,
                "tables": sorted(config.schemas),
                "headHlc": str(max((head.commit for head in heads.values()), default=0)),
                "flushedHlc": str(state.watermark),
                "unflushedBytes": sum(unflushed_bytes(head) for head in heads.values()),
                "unflushedAgeMs": max(age_ms, 0),
                "shards": {
                    shard: {"headHlc": str(head.commit), "unflushedBytes": unflushed_bytes(head)}
                    for shard, head in sorted(heads.items())
                },
            }
        )

    def _change(
        self,
        gateway: str,
        change: Callable[[GatewayConfig], GatewayConfig],
        *,
        rules: bool = False,
    ) -> GatewayConfig:
        """Put a changed configuration in force, however busy the gateway is."""
        for _ in range(_TRIES_MAX):
            held = self._buffer.config(gateway)
            wanted = change(held)
            if wanted is held:
                return held
            wanted = replace(wanted, version=held.version + 1)
            heads = self._buffer.heads(gateway, wanted.layout.shards())
            top = max((head.commit for head in heads.values()), default=0)
            epoch = max((head.epoch for head in heads.values()), default="")
            # Pushes move heads all the time: a lead keeps them from moving past this change.
            to = max(top, stamp(self._wall_clock())) + stamp(_LEAD_MS)
            if rules:
                wanted = replace(wanted, rules_since=to)
            try:
                self._buffer.save_config(gateway, wanted, to, epoch)
            except (HeadMoved, Conflict, Unavailable):
                # Heads moved even further, or another administrator is at work.
                self._sleep_ms(self._chance.jitter() * _BACK_OFF_MS)
            else:
                return wanted
        raise Contention("the gateway is too busy to change its configuration; try again")


def _with_rules(held: GatewayConfig, body: object) -> GatewayConfig:
    rules = rules_from_json(body, held.schemas)
    return held if rules == held.rules else replace(held, rules=rules)


def _with_schema(held: GatewayConfig, wanted: TableSchema) -> GatewayConfig:
    before = held.schemas.get(wanted.table)
    schema = evolve(before, wanted)
    if schema is before:
        return held
    if before is None and len(held.schemas) >= TABLES_MAX:
        raise Conflict(f"a gateway may have {TABLES_MAX} tables with a schema; use more gateways")
    return replace(held, schemas=MappingProxyType({**held.schemas, wanted.table: schema}))
