"""What administrators declare of tables: their schemas; and the removal of tables.

A name exists from the first push that writes it, in the spelling of that push. A schema has
precedence over a name that clients have only declared: it takes the name over while no commit holds
a row of the table. Afterwards the spelling is in rows, logs and lakes, and the schema adopts it.
Laws S3, S5 and S7: ``docs/spec/schema.md``.
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from lakesync.core.declaring import TABLES_MAX, has_room_for_a_table, without_table
from lakesync.core.evolution import evolve
from lakesync.core.rules import rules_to_json
from lakesync.core.rules_json import read_rules
from lakesync.core.schema_json import schema_from_json
from lakesync.core.spelling import spelled_as
from lakesync.errors import Conflict, NotFound, RulesRefused, TooManyTables
from lakesync.gateway.table_use import has_commits, what_is_left

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lakesync.core.config import GatewayConfig
    from lakesync.core.rules import SyncRules
    from lakesync.core.schema import TableSchema
    from lakesync.log.declare import Declare
    from lakesync.ports import Buffer


class DeclaredTables:
    """Registers schemas and removes tables, of any gateway."""

    def __init__(self, buffer: Buffer, declare: Declare) -> None:
        self._buffer = buffer
        self._declare = declare

    def register(self, gateway: str, body: object) -> TableSchema:
        """Register a table's schema, or evolve its present one; see `AdminService`."""
        wanted = schema_from_json(body)

        def is_used(table: str) -> bool:
            return has_commits(self._buffer, gateway, table)

        config = self._declare(gateway, lambda config: _with_schema(config, wanted, is_used))
        return config.schemas[config.spelling_of(wanted.table)]

    def remove(self, gateway: str, table: str) -> None:
        """Remove a table of which nothing is left; see `AdminService`."""

        def left(table: str) -> str:
            return what_is_left(self._buffer, gateway, table)

        self._declare(gateway, lambda config: _without(config, table, left))

    def check_removable(self, gateway: str, table: str) -> None:
        """Refuse what `remove` would."""
        config = self._buffer.config(gateway)
        config.check_not_deleted()
        _without(config, table, lambda table: what_is_left(self._buffer, gateway, table))


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
    """Give a schema the names of a table that pushes declared, or give it the spellings in use."""
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
