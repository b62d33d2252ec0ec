"""Administration of one gateway: its schemas, its layout, its state in numbers."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from lakesync.core.config import TABLES_MAX
from lakesync.core.evolution import evolve
from lakesync.core.names import first_spellings, folded, name_taken
from lakesync.core.rules import rules_to_json
from lakesync.core.rules_json import read_rules
from lakesync.core.schema import Schemas, schema_from_json, shown_to_clients
from lakesync.core.visibility import Viewer
from lakesync.errors import (
    Conflict,
    LakeSyncError,
    NotFound,
    RulesRefused,
    TooManyTables,
)
from lakesync.gateway.metrics import metrics
from lakesync.gateway.rules_dry_run import Trial
from lakesync.log.declare import Declare
from lakesync.result import Err, Ok, Result

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lakesync.core.config import GatewayConfig
    from lakesync.core.layout import Placement
    from lakesync.core.rules import SyncRules
    from lakesync.core.schema import TableSchema
    from lakesync.core.visibility import Claims
    from lakesync.errors import Fault
    from lakesync.gateway.rules_dry_run import TableTrial
    from lakesync.log.commit import Chance
    from lakesync.ports import Buffer, WallClock


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
        self._declare = Declare(buffer, wall_clock=wall_clock, sleep_ms=sleep_ms, chance=chance)

    def register_schema(self, gateway: str, body: object) -> Result[TableSchema, LakeSyncError]:
        """Register a table's schema, or evolve the one it has; safe to repeat.

        Returns:
            The schema in force, with its version; or ``VALIDATION_ERROR``, ``SCHEMA_ERROR``,
            ``CONFLICT`` with the way to get there instead.
        """
        try:
            wanted = schema_from_json(body)
            self._check_holds_no_rows(gateway, wanted)
            config = self._declare(gateway, lambda held: _with_schema(held, wanted))
            return Ok(config.schemas[wanted.table])
        except LakeSyncError as error:
            return Err(error)

    def schemas(self, gateway: str, table: str | None = None) -> Result[Schemas, LakeSyncError]:
        """Give the schemas in force, in the order of their tables' names.

        Returns:
            All of them, or the one of ``table``; ``NOT_FOUND`` if that has none.
        """
        try:
            config = self._buffer.config(gateway)
        except LakeSyncError as error:
            return Err(error)
        if table is not None and table not in config.schemas:
            return Err(NotFound(f"no schema is registered for table {table}", field="table"))
        held = [config.schemas[name] for name in sorted(config.schemas) if table in {None, name}]
        return Ok(Schemas(config.schema_version, tuple(held), config.strict))

    def schemas_for(self, gateway: str, claims: Claims) -> Result[Schemas, LakeSyncError]:
        """Give what a client may know of the schemas: of tables that the rules can show it."""
        try:
            config = self._buffer.config(gateway)
        except LakeSyncError as error:
            return Err(error)
        viewer = Viewer(config.rules, claims)
        names = sorted(name for name in config.schemas if viewer.may_see(name))
        shown = tuple(shown_to_clients(config.schemas[name]) for name in names)
        return Ok(Schemas(config.schema_version, shown, config.strict))

    def set_strict(self, gateway: str, *, strict: bool) -> Result[bool, LakeSyncError]:
        """Say whether tables without a schema are refused from now on; safe to repeat."""

        def changed(held: GatewayConfig) -> GatewayConfig:
            return held if held.strict is strict else replace(held, strict=strict)

        try:
            return Ok(self._declare(gateway, changed).strict)
        except LakeSyncError as error:
            return Err(error)

    def save_rules(self, gateway: str, body: object) -> Result[SyncRules, LakeSyncError]:
        """Put sync rules in force for every push and pull from now on; safe to repeat.

        Returns:
            The rules; or ``SYNC_RULES_ERROR``, which names every fault.
        """
        try:
            config = self._declare(gateway, lambda held: _with_rules(held, body))
            return Ok(config.rules)
        except LakeSyncError as error:
            return Err(error)

    def warnings(self, gateway: str, body: object) -> Result[list[Fault], LakeSyncError]:
        """Give what is no fault of sync rules, and may be a mistake.

        Returns:
            The warnings; or ``SYNC_RULES_ERROR``, which names every fault.
        """
        try:
            return Ok(Trial(self._buffer, gateway, self._buffer.config(gateway), body).warnings)
        except LakeSyncError as error:
            return Err(error)

    def try_rules(
        self, gateway: str, body: object, claims: Claims | None
    ) -> Result[list[TableTrial], LakeSyncError]:
        """Tell what sync rules would do, and save nothing; safe to repeat.

        Args:
            gateway: whose.
            body: the rules, as `save_rules` takes them.
            claims: those of a client whose rows are wanted; None to have only the rules checked.

        Returns:
            What they would do with each table; or ``SYNC_RULES_ERROR``, which names every fault.
        """
        try:
            trial = Trial(self._buffer, gateway, self._buffer.config(gateway), body)
            if claims is None:
                return Ok(trial.tables())
            return Ok(trial.tables_as({**claims, "gw": gateway}, self._wall_clock))
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
            held.check_table(table)
            return replace(held, layout=held.layout.moved(table, placement))

        try:
            return Ok(self._declare(gateway, placed))
        except LakeSyncError as error:
            return Err(error)

    def metrics(
        self, gateway: str, claims: Claims | None = None
    ) -> Result[dict[str, object], LakeSyncError]:
        """Give a gateway's buffer in numbers: one read unit a shard, and two.

        Args:
            gateway: whose.
            claims: those of a client, who is told of tables that the rules can show it, and of the
                shards they go to; None for an administrator, who is told of all.
        """
        try:
            return Ok(metrics(self._buffer, gateway, claims, self._wall_clock()))
        except LakeSyncError as error:
            return Err(error)

    def _check_holds_no_rows(self, gateway: str, wanted: TableSchema) -> None:
        """Refuse to make events of a table that has rows; one that is pushed right now slips by.

        Raises:
            Conflict: it has some.
        """
        if not wanted.append or wanted.table in self._buffer.config(gateway).schemas:
            return
        if self._buffer.scan_rows(gateway, wanted.table, "", 1).rows:
            raise Conflict(
                f"the table {wanted.table} has rows; give events a table of their own",
                field="append",
            )


def _with_rules(held: GatewayConfig, body: object) -> GatewayConfig:
    rules, _ = read_rules(body, held.schemas, held.tables, strict=held.strict)
    if rules == held.rules:
        return held
    return replace(held, rules=rules, logged=held.logged.with_rules(rules))


def _with_schema(held: GatewayConfig, wanted: TableSchema) -> GatewayConfig:
    before = held.schemas.get(wanted.table)
    schema = evolve(before, wanted)
    if schema is before:
        return held
    held.check_table(wanted.table)
    spellings = first_spellings(held.tables.get(wanted.table, ()))
    for column in wanted.columns:
        first = spellings.get(folded(column.name), column.name)
        if first != column.name:
            raise name_taken(column.name, first, "column")
    if not held.knows(wanted.table) and held.room_for_tables <= 0:
        raise TooManyTables(f"a gateway may have {TABLES_MAX} tables; use more gateways")
    schemas = MappingProxyType({**held.schemas, wanted.table: schema})
    _check_rules_fit(held.rules, schemas)
    return replace(held, schemas=schemas)


def _check_rules_fit(rules: SyncRules, schemas: Mapping[str, TableSchema]) -> None:
    """Refuse schemas that the rules in force were not written for."""
    try:
        read_rules(rules_to_json(rules), schemas, strict=False)
    except RulesRefused as exc:
        fault = exc.faults[0]
        raise Conflict(
            f"the sync rules in force would not fit: {fault.path}: {fault.told}; change the rules "
            "first",
            field=fault.path,
        ) from exc
