"""Administration of one gateway: its schemas, its layout, its metrics.

A name exists from the first push that writes it, in the spelling of that push. A schema has
precedence over a name that clients have only declared: it takes the name over while no commit holds
a row of the table. Afterwards the spelling is in rows, logs and lakes, and the schema adopts it.
Whether a commit does is looked up while the configuration is changed (`lakesync.log.declare`):
after the heads were read, so a commit that follows undoes the change. Laws S3, S5 and S7:
``docs/spec/schema.md``.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from lakesync.core.clock import stamp_ms
from lakesync.core.layout import DEFAULT_SHARD, MAIN_LANE, check_shard, lane_shard
from lakesync.core.rule_checks import check_rules
from lakesync.core.schema import Schemas, evolve, shown_to_clients, spelled_as
from lakesync.core.visibility import Viewer
from lakesync.errors import Conflict, NotFound, TooManyTables
from lakesync.gateway.admin_changes import Trial
from lakesync.log.declare import TABLES_MAX, Declare, has_room_for_a_table, without_table
from lakesync.log.lanes import unflushed_bytes, with_table_placed
from lakesync.log.read import ReadBarrier, Waiting, read_all, waiting_tables
from lakesync.ports import NO_HEAD

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lakesync.core.clock import Stamp
    from lakesync.core.config import Flushing, GatewayConfig
    from lakesync.core.layout import Layout
    from lakesync.core.rules import SyncRules
    from lakesync.core.schema import TableSchema
    from lakesync.core.visibility import Claims
    from lakesync.errors import Fault
    from lakesync.gateway.admin_changes import ReadsRules, TableTrial
    from lakesync.ports import Buffer, Chance, WallClock

# --- the service ----------------------------------------------------------------------------------


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

    def register_schema(self, gateway: str, wanted: TableSchema) -> TableSchema:
        """Register a table's schema, or evolve its present one; idempotent.

        A name that clients declared in another spelling is the schema's while no commit holds a row
        of the table. Afterwards the schema adopts the spelling in use.

        Returns:
            The schema in force, with its version and spellings.

        Raises:
            SchemaMismatch: a column cannot partition or sort the table.
            Conflict: the schema in force cannot evolve to it, and says how to get there instead;
                the table has rows, or the rules in force would not fit.
        """
        is_used = partial(has_commits, self._buffer, gateway)
        config = self._declare(gateway, lambda config: _with_schema(config, wanted, is_used))
        return config.schemas[config.spelling_of(wanted.table)]

    def knows_table(self, gateway: str, table: str) -> bool:
        return self._config(gateway).knows(table)

    def remove_table(self, gateway: str, table: str, *, dry_run: bool = False) -> None:
        """Remove a table of which nothing is left, so that it counts no more and its name is free.

        Args:
            dry_run: change nothing; only check whether it may be done.

        Raises:
            NotFound: there is none.
            Conflict: it has a schema, the rules name it, or data of it is left in the buffer.
        """
        left = partial(what_is_left, self._buffer, gateway)
        if dry_run:
            _without(self._config(gateway), table, left)
        else:
            self._declare(gateway, lambda config: _without(config, table, left))

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

    def save_rules(self, gateway: str, reads: ReadsRules) -> SyncRules:
        """Put sync rules in force for every push and pull from now on; safe to repeat.

        They are read by the very configuration that they become part of.

        Raises:
            RulesRefused: they are malformed, or do not fit the schemas; names every fault.
        """
        return self._declare(gateway, lambda config: _with_rules(config, reads)).rules

    def warnings(self, gateway: str, reads: ReadsRules) -> list[Fault]:
        """Return the warnings for sync rules: what is no fault and may be a mistake.

        Raises:
            RulesRefused: they have faults; names every one.
        """
        return reads(self._config(gateway))[1]

    def try_rules(self, gateway: str, reads: ReadsRules, claims: Claims | None) -> list[TableTrial]:
        """Return the effects that sync rules would have, without saving them; idempotent.

        Args:
            reads: the rules, as `save_rules` accepts them.
            claims: those of a client whose rows are wanted; None to have only the rules checked.

        Returns:
            What they would do with each table.

        Raises:
            RulesRefused: they are malformed, or do not fit the schemas; names every fault.
        """
        trial = Trial(self._buffer, gateway, self._config(gateway), reads)
        if claims is None:
            return trial.tables()
        return trial.tables_as({**claims, "gw": gateway}, self._wall_clock)

    def rules(self, gateway: str) -> SyncRules:
        return self._config(gateway).rules

    def layout(self, gateway: str) -> Layout:
        return self._config(gateway).layout

    def place_table(
        self, gateway: str, table: str, shard: str, *, dry_run: bool = False
    ) -> GatewayConfig:
        """Put a table into a shard, while pushes continue; idempotent.

        Rows and log stay where they are: only the lanes of later commits change.

        Args:
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
        return self._config(gateway).flushing

    def save_flushing(self, gateway: str, wanted: Flushing) -> Flushing:
        """Declare when the gateway is flushed, from the schedule's next run on; safe to repeat.

        Raises:
            NameTaken: it spells a table differently.
        """

        def changed(config: GatewayConfig) -> GatewayConfig:
            for table in wanted.tables:
                config.check_table(table)
            return config if config.flushing == wanted else replace(config, flushing=wanted)

        return self._declare(gateway, changed).flushing

    def table_metrics(self, gateway: str) -> dict[str, dict[str, object]]:
        """Return by table what waits to be flushed, and how many rows are known.

        For administrators only: no number here heeds rules. Deleted rows whose deletion is still
        remembered are rows that are known. Cost: what waits is read, and rows up to the bounds; a
        number that reached one is marked as the least that there are.
        """
        self._config(gateway)
        log = ReadBarrier(self._buffer).raise_heads(gateway)
        waiting, is_all = waiting_tables(self._buffer, log, WAITING_DELTAS_MAX)
        names = sorted({*log.config.schemas, *log.config.tables, *waiting})
        shown: dict[str, dict[str, object]] = {}
        for number, table in enumerate(names):
            one = waiting.get(table, Waiting())
            rows: dict[str, object] = {}
            if not log.config.appends(table) and number < TABLES_COUNTED_MAX:
                count, is_counted = _rows(self._buffer, gateway, table)
                rows = {"rows": count} if is_counted else {"rows": count, "moreRows": True}
            more = {} if is_all else {"moreUnflushed": True}
            shown[table] = {
                "unflushedBytes": one.bytes,
                "unflushedDeltas": one.deltas,
                **more,
                **rows,
            }
        return shown

    def metrics(self, gateway: str, claims: Claims | None = None) -> dict[str, object]:
        """Return the metrics of a gateway's buffer: one read unit for each shard, and two.

        Args:
            claims: those of a client, which gets what its pulls tell it where rules keep anything
                from it; None for an administrator, who gets all.
        """
        return metrics(self._buffer, gateway, claims, self._wall_clock())

    def _config(self, gateway: str) -> GatewayConfig:
        config = self._buffer.config(gateway)
        config.check_not_deleted()
        return config


def _with_rules(config: GatewayConfig, reads: ReadsRules) -> GatewayConfig:
    rules, _ = reads(config)
    if rules == config.rules:
        return config
    return replace(config, rules=rules, logged=config.logged.with_rules(rules))


# --- schemas, and the removal of tables -----------------------------------------------------------


def _with_schema(
    config: GatewayConfig, wanted: TableSchema, is_used: Callable[[str], bool]
) -> GatewayConfig:
    table = config.spelling_of(wanted.table)
    before = config.schemas.get(table)
    if before is not None:
        config.check_table(wanted.table)  # an administrator chose the other spelling
    elif table in config.tables:
        config, wanted = _taken_over(config, table, wanted, is_used)
    elif wanted.append and is_used(table):
        raise _has_rows(table, "append")
    schema = evolve(before, wanted)
    if schema is before:
        return config
    if not config.knows(schema.table) and not has_room_for_a_table(config):
        raise TooManyTables(f"a gateway may have {TABLES_MAX} tables; use more gateways")
    schemas = MappingProxyType({**config.schemas, schema.table: schema})
    _check_rules_fit(config.rules, schemas)
    declared = {name: each for name, each in config.declared.items() if name != schema.table}
    return replace(config, schemas=schemas, declared=MappingProxyType(declared))


def _taken_over(
    config: GatewayConfig, table: str, wanted: TableSchema, is_used: Callable[[str], bool]
) -> tuple[GatewayConfig, TableSchema]:
    adopted = spelled_as(wanted, table, config.tables[table])
    if adopted == wanted and not wanted.delete_wins and not wanted.append:
        return config, wanted
    if not is_used(table):
        return without_table(config, table), wanted
    if wanted.append:
        raise _has_rows(table, "append")
    if wanted.delete_wins:
        raise Conflict(
            f"the table {table} has been written to, and deleteWins would change its rows with no "
            "change of theirs; declare a new table so, and copy the rows",
            field="deleteWins",
        )
    return config, adopted


def _has_rows(table: str, field: str) -> Conflict:
    return Conflict(f"the table {table} has rows; give events a table of their own", field=field)


def _without(config: GatewayConfig, table: str, left: Callable[[str], str]) -> GatewayConfig:
    if not config.knows(table):
        raise NotFound(f"there is no table {table}", field="table")
    if table in config.schemas:
        raise Conflict(f"the table {table} has a schema, and a schema stays", field="table")
    if table in config.rules.tables():
        raise Conflict(f"the sync rules name the table {table}; change them first", field="table")
    rest = left(table)
    if rest:
        raise Conflict(f"of the table {table} there are {rest}", field="table")
    return without_table(config, table)


def _check_rules_fit(rules: SyncRules, schemas: Mapping[str, TableSchema]) -> None:
    faults, _ = check_rules(rules, schemas, strict=False)
    if faults:
        path, message = faults[0]
        raise Conflict(
            f"the sync rules in force would not fit: {path}: {message}; change the rules first",
            field=path,
        )


# --- what is left of a table ----------------------------------------------------------------------


_LOG_DELTAS_MAX: Final = 10_000
"""Deltas of the log that one read gives."""


def has_commits(buffer: Buffer, gateway: str, table: str) -> bool:
    """Return whether a commit ever held a row of the table.

    Cost: a read unit if the table has rows; else the flushed tables and the unflushed log are read.
    """
    if buffer.scan_rows(gateway, table, "", 1).rows:
        return True
    # In this order: a commit that is flushed meanwhile is in one of them at least.
    watermark = buffer.flush_state(gateway).watermark
    return _is_logged(buffer, gateway, table, watermark) or table in buffer.flushed_tables(gateway)


def what_is_left(buffer: Buffer, gateway: str, table: str) -> str:
    """Return what is left of a table's data in the buffer, in words; empty if that is nothing.

    Cost: as `has_commits`; the log that was flushed is not read.
    """
    if buffer.scan_rows(gateway, table, "", 1).rows:
        return "rows, or deletions of rows that clients may not have read"
    watermark = buffer.flush_state(gateway).watermark
    if _is_logged(buffer, gateway, table, watermark):
        return "changes that wait to be flushed"
    last = buffer.flushed_tables(gateway).get(table, 0)
    if last > ReadBarrier(buffer).raise_heads(gateway).trimmed:
        return "changes in the log, until retention trims it"
    return ""


def _is_logged(buffer: Buffer, gateway: str, table: str, since: Stamp) -> bool:
    log = ReadBarrier(buffer).raise_heads(gateway, since)
    span = (max(since, log.trimmed), log.top)
    return any(table in entry.tables for entry in read_all(buffer, log, span, _LOG_DELTAS_MAX))


# --- metrics, and what of them a client may know --------------------------------------------------


ROWS_COUNTED_MAX: Final = 10_000
"""Rows that are counted of one table; about a megabyte of small ones."""
TABLES_COUNTED_MAX: Final = 50
"""Tables whose rows are counted for one answer; of the others it says what waits."""
WAITING_DELTAS_MAX: Final = 200_000
"""Deltas that are read of what waits; some seconds."""


def _rows(buffer: Buffer, gateway: str, table: str) -> tuple[int, bool]:
    count, place = 0, ""
    while count < ROWS_COUNTED_MAX:
        part = buffer.scan_rows(gateway, table, place, ROWS_COUNTED_MAX - count)
        count, place = count + len(part.rows), part.place
        if not place:
            return count, True
    return count, False


def metrics(buffer: Buffer, gateway: str, claims: Claims | None, now_ms: int) -> dict[str, object]:
    """Return how much is unflushed, since when, and how far the log is, in total and by shard.

    A client (``claims``) from which rules keep anything is only told what its pulls tell it: the
    tables that the rules can show it, and how far the log is. Every other number also counts what
    is hidden from it. From the bytes of the log, less those of its own pushes, it could read the
    size of each hidden commit, and rounding would not help: its pushes would find where a number
    steps.
    """
    config = buffer.config(gateway)
    viewer = Viewer(config.rules, claims or {})
    every = buffer.heads(gateway)
    head = str(max((head.commit for head in every.values()), default=0))
    if claims is not None and not viewer.sees_everything:
        tables = sorted(table for table in config.schemas if viewer.may_see(table))
        return {"gateway": gateway, "tables": tables, "headHlc": head}
    state = buffer.flush_state(gateway)
    oldest = [head.oldest_unflushed for head in every.values() if head.oldest_unflushed]
    age_ms = now_ms - stamp_ms(min(oldest)) if oldest else 0
    return {
        "gateway": gateway,
        "configVersion": config.version,
        "tables": sorted(config.schemas),
        "headHlc": head,
        "flushedHlc": str(state.watermark),
        "unflushedBytes": sum(unflushed_bytes(head) for head in every.values()),
        "unflushedAgeMs": max(age_ms, 0),
        "lanes": len((every.get(MAIN_LANE) or NO_HEAD).lanes.open()),
        "shards": {
            shard: {
                "headHlc": str(max(head.commit for head in of_shard)),
                "unflushedBytes": sum(map(unflushed_bytes, of_shard)),
            }
            for shard in sorted(config.layout.shards())
            if (of_shard := [h for lane, h in every.items() if lane_shard(lane) == shard])
        },
    }
