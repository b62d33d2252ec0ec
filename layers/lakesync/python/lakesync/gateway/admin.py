"""Administration of one gateway: its schemas, its layout, its metrics."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from lakesync.core.flushing_json import read_flushing
from lakesync.core.layout import DEFAULT_SHARD, check_shard
from lakesync.core.rules_json import read_rules
from lakesync.core.schema import Schemas, shown_to_clients
from lakesync.core.visibility import Viewer
from lakesync.errors import NotFound
from lakesync.gateway.declared_tables import DeclaredTables
from lakesync.gateway.metrics import metrics, table_metrics
from lakesync.gateway.rules_dry_run import Trial
from lakesync.log.declare import Declare
from lakesync.log.head_room import with_table_placed

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakesync.core.config import GatewayConfig
    from lakesync.core.flushing import Flushing
    from lakesync.core.layout import Layout
    from lakesync.core.rules import SyncRules
    from lakesync.core.schema import TableSchema
    from lakesync.core.token_claims import Claims
    from lakesync.errors import Fault
    from lakesync.gateway.rules_dry_run import TableTrial
    from lakesync.ports import Buffer, Chance, WallClock


class AdminService:
    """Changes and shows what is declared for a gateway."""

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
        self._declare = Declare(buffer, wall_clock=wall_clock, sleep_ms=sleep_ms, chance=chance)
        self._tables = DeclaredTables(buffer, self._declare)

    def register_schema(self, gateway: str, body: object) -> TableSchema:
        """Register a table's schema, or evolve its present one; idempotent.

        A name that clients declared in another spelling is the schema's while no commit holds a row
        of the table. Afterwards the schema adopts the spelling in use.

        Returns:
            The schema in force, with its version and spellings.

        Raises:
            ValidationFailed: it is malformed.
            SchemaMismatch: the schema in force cannot evolve to it; says how to get there instead.
            Conflict: the table has rows, or the rules in force would not fit.
        """
        return self._tables.register(gateway, body)

    def knows_table(self, gateway: str, table: str) -> bool:
        """Return whether the table is one of the gateway's, in this spelling."""
        return self._config(gateway).knows(table)

    def remove_table(self, gateway: str, table: str, *, dry_run: bool = False) -> None:
        """Remove a table of which nothing is left, so that it counts no more and its name is free.

        Args:
            gateway: whose.
            table: the table.
            dry_run: change nothing; only check whether it may be done.

        Raises:
            NotFound: there is none.
            Conflict: it has a schema, the rules name it, or data of it is left in the buffer.
        """
        if dry_run:
            self._tables.check_removable(gateway, table)
        else:
            self._tables.remove(gateway, table)

    def schemas(self, gateway: str, table: str | None = None) -> Schemas:
        """Return the schemas in force by their tables' names, or only that of ``table``.

        Raises:
            NotFound: the table has none.
        """
        config = self._config(gateway)
        if table is not None and table not in config.schemas:
            raise NotFound(f"no schema is registered for table {table}", field="table")
        names = sorted(config.schemas) if table is None else [table]
        schemas = tuple(config.schemas[name] for name in names)
        return Schemas(config.schema_version, schemas, config.strict)

    def schemas_for(self, gateway: str, claims: Claims) -> Schemas:
        """Return the schemas as a client may know them: of the tables that rules can show it."""
        config = self._config(gateway)
        viewer = Viewer(config.rules, claims)
        names = sorted(name for name in config.schemas if viewer.may_see(name))
        each = (shown_to_clients(config.schemas[name], viewer.omitted(name)) for name in names)
        shown = tuple(schema for schema in each if schema is not None)
        return Schemas(config.schema_version, shown, config.strict)

    def set_strict(self, gateway: str, *, strict: bool) -> None:
        """Say whether tables without a schema are refused from now on; safe to repeat."""

        def changed(config: GatewayConfig) -> GatewayConfig:
            return config if config.strict is strict else replace(config, strict=strict)

        self._declare(gateway, changed)

    def save_rules(self, gateway: str, body: object) -> SyncRules:
        """Put sync rules in force for every push and pull from now on; safe to repeat.

        Raises:
            RulesRefused: they are malformed, or do not fit the schemas; names every fault.
        """
        return self._declare(gateway, lambda config: _with_rules(config, body)).rules

    def warnings(self, gateway: str, body: object) -> list[Fault]:
        """Return the warnings for sync rules: what is no fault and may be a mistake.

        Raises:
            RulesRefused: they have faults; names every one.
        """
        return Trial(self._buffer, gateway, self._config(gateway), body).warnings

    def try_rules(self, gateway: str, body: object, claims: Claims | None) -> list[TableTrial]:
        """Return the effects that sync rules would have, without saving them; idempotent.

        Args:
            gateway: whose.
            body: the rules, as `save_rules` accepts them.
            claims: those of a client whose rows are wanted; None to have only the rules checked.

        Returns:
            What they would do with each table.

        Raises:
            RulesRefused: they are malformed, or do not fit the schemas; names every fault.
        """
        trial = Trial(self._buffer, gateway, self._config(gateway), body)
        if claims is None:
            return trial.tables()
        return trial.tables_as({**claims, "gw": gateway}, self._wall_clock)

    def rules(self, gateway: str) -> SyncRules:
        """Return the sync rules in force."""
        return self._config(gateway).rules

    def layout(self, gateway: str) -> Layout:
        """Return the shards of the tables."""
        return self._config(gateway).layout

    def place_table(
        self, gateway: str, table: str, shard: str, *, dry_run: bool = False
    ) -> GatewayConfig:
        """Put a table into a shard, while pushes continue; idempotent.

        Rows and log stay where they are: only the lanes of later commits change.

        Args:
            gateway: whose.
            table: the table.
            shard: the shard.
            dry_run: change nothing; only check whether it may be done.

        Raises:
            ValidationFailed: it is no shard name, or there would be too many.
            NameTaken: the table exists under another spelling.
        """

        def placed(config: GatewayConfig) -> GatewayConfig:
            if config.layout.tables.get(table, DEFAULT_SHARD) == check_shard(shard):
                return config
            config.check_table(table)
            return replace(config, layout=with_table_placed(gateway, config.layout, table, shard))

        if dry_run:
            return placed(self._config(gateway))
        return self._declare(gateway, placed)

    def flushing(self, gateway: str) -> Flushing:
        """Return when the gateway is flushed, as it was declared."""
        return self._config(gateway).flushing

    def save_flushing(self, gateway: str, body: object) -> Flushing:
        """Declare when the gateway is flushed, from the schedule's next run on; safe to repeat.

        Raises:
            ValidationFailed: it is malformed.
            NameTaken: it spells a table differently.
        """

        def changed(config: GatewayConfig) -> GatewayConfig:
            wanted = read_flushing(body, config)
            return config if config.flushing == wanted else replace(config, flushing=wanted)

        return self._declare(gateway, changed).flushing

    def table_metrics(self, gateway: str) -> dict[str, dict[str, object]]:
        """Return what waits to be flushed and the rows of each table; see `table_metrics`."""
        self._config(gateway)
        return table_metrics(self._buffer, gateway)

    def metrics(self, gateway: str, claims: Claims | None = None) -> dict[str, object]:
        """Return the metrics of a gateway's buffer: one read unit for each shard, and two.

        Args:
            gateway: whose.
            claims: those of a client, which gets what its pulls tell it where rules keep anything
                from it; None for an administrator, who gets all.
        """
        return metrics(self._buffer, gateway, claims, self._wall_clock())

    def _config(self, gateway: str) -> GatewayConfig:
        config = self._buffer.config(gateway)
        config.check_not_deleted()
        return config


def _with_rules(config: GatewayConfig, body: object) -> GatewayConfig:
    rules, _ = read_rules(body, config.schemas, config.tables, strict=config.strict)
    if rules == config.rules:
        return config
    return replace(config, rules=rules, logged=config.logged.with_rules(rules))
