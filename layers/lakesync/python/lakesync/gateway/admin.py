"""Administration of one gateway: its schemas, its layout, its metrics."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from lakesync.core.config import TABLES_MAX
from lakesync.core.evolution import evolve
from lakesync.core.layout import DEFAULT_SHARD, MAIN_LANE, check_shard
from lakesync.core.names import first_spellings, folded, name_taken
from lakesync.core.rules import rules_to_json
from lakesync.core.rules_json import read_rules
from lakesync.core.schema import Schemas, shown_to_clients
from lakesync.core.schema_json import schema_from_json
from lakesync.core.visibility import Viewer
from lakesync.errors import (
    Conflict,
    NotFound,
    RulesRefused,
    TooManyTables,
)
from lakesync.gateway.metrics import metrics
from lakesync.gateway.rules_dry_run import Trial
from lakesync.log.declare import Declare
from lakesync.log.head_room import with_table_placed
from lakesync.ports import NO_HEAD

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lakesync.core.config import GatewayConfig
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

    def register_schema(self, gateway: str, body: object) -> TableSchema:
        """Register a table's schema, or evolve its present one; idempotent.

        Returns:
            The schema in force, with its version.

        Raises:
            ValidationFailed: it is malformed.
            SchemaMismatch: the schema in force cannot evolve to it; says how to get there instead.
            Conflict: the table has rows, or the rules in force would not fit.
        """
        wanted = schema_from_json(body)
        self._check_holds_no_rows(gateway, wanted)
        config = self._declare(gateway, lambda config: _with_schema(config, wanted))
        return config.schemas[wanted.table]

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

    def epoch(self, gateway: str) -> str:
        """Return the epoch of the buffer; empty unless it was restored from a backup."""
        return self._buffer.lane_heads(gateway, [MAIN_LANE]).get(MAIN_LANE, NO_HEAD).epoch

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

    def metrics(self, gateway: str, claims: Claims | None = None) -> dict[str, object]:
        """Return the metrics of a gateway's buffer: one read unit for each shard, and two.

        Args:
            gateway: whose.
            claims: those of a client, which gets the tables that the rules can show it, and their
                shards; None for an administrator, who gets all.
        """
        return metrics(self._buffer, gateway, claims, self._wall_clock())

    def _config(self, gateway: str) -> GatewayConfig:
        config = self._buffer.config(gateway)
        config.check_not_deleted()
        return config

    def _check_holds_no_rows(self, gateway: str, wanted: TableSchema) -> None:
        """Refuse to make an append table of one that has rows; a row in flight may go unnoticed.

        Raises:
            Conflict: it has some.
        """
        if not wanted.append or wanted.table in self._config(gateway).schemas:
            return
        if self._buffer.scan_rows(gateway, wanted.table, "", 1).rows:
            raise Conflict(
                f"the table {wanted.table} has rows; give events a table of their own",
                field="append",
            )


def _with_rules(config: GatewayConfig, body: object) -> GatewayConfig:
    rules, _ = read_rules(body, config.schemas, config.tables, strict=config.strict)
    if rules == config.rules:
        return config
    return replace(config, rules=rules, logged=config.logged.with_rules(rules))


def _with_schema(config: GatewayConfig, wanted: TableSchema) -> GatewayConfig:
    before = config.schemas.get(wanted.table)
    schema = evolve(before, wanted)
    if schema is before:
        return config
    config.check_table(wanted.table)
    if wanted.delete_wins and before is None and wanted.table in config.tables:
        raise Conflict(
            f"the table {wanted.table} has been written to, and deleteWins would change its rows "
            "with no change of theirs; declare a new table so, and copy the rows",
            field="deleteWins",
        )
    spellings = first_spellings(config.tables.get(wanted.table, ()))
    for column in wanted.columns:
        first = spellings.get(folded(column.name), column.name)
        if first != column.name:
            raise name_taken(column.name, first, "column")
    if not config.knows(wanted.table) and config.room_for_tables <= 0:
        raise TooManyTables(f"a gateway may have {TABLES_MAX} tables; use more gateways")
    schemas = MappingProxyType({**config.schemas, wanted.table: schema})
    _check_rules_fit(config.rules, schemas)
    return replace(config, schemas=schemas)


def _check_rules_fit(rules: SyncRules, schemas: Mapping[str, TableSchema]) -> None:
    """Refuse schemas that the rules in force were not written for."""
    try:
        read_rules(rules_to_json(rules), schemas, strict=False)
    except RulesRefused as exc:
        fault = exc.faults[0]
        raise Conflict(
            f"the sync rules in force would not fit: {fault.path}: {fault.message}; change the "
            "rules first",
            field=fault.path,
        ) from exc
