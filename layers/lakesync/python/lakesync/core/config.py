"""The configuration of one gateway: its schemas and its layout, as one versioned document."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lakesync.core.flushing import (
    BY_SCHEDULE,
    Flushing,
    flushing_from_stored,
    flushing_to_json,
)
from lakesync.core.layout import Layout
from lakesync.core.logged import LoggedColumns, logged_from_json, logged_to_json
from lakesync.core.merge import as_read
from lakesync.core.names import first_spellings, folded, name_taken
from lakesync.core.rules import NO_RULES, SyncRules, rules_from_stored, rules_to_json
from lakesync.core.schema_json import schema_to_json
from lakesync.core.stored import (
    STORED_FIELDS,
    WRITES,
    Unknown,
    check_format,
    schema_from_stored,
)
from lakesync.errors import GatewayDeleted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lakesync.core.clock import Stamp
    from lakesync.core.delta import Delta
    from lakesync.core.merge import RowState
    from lakesync.core.schema import TableSchema

CONFIG_BYTES_MAX: Final = 350 * 1024
"""The whole document, as JSON. It is one item, and a DynamoDB item holds 400 KB."""


class Declared(NamedTuple):
    """Who declared a table that no schema names; see `lakesync.core.declaring`."""

    by: str = ""
    """The user, as `lakesync.core.declaring.user_digest` gives it; empty for a connector's."""
    columns: Mapping[str, int] = MappingProxyType({})
    """By user, how many of its columns."""


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    """Everything that a push or a pull must know before it acts.

    Heads carry ``version``, and a change of it advances every open head. So a function that works
    with an old document cannot commit.
    """

    version: int = 0
    schemas: Mapping[str, TableSchema] = field(default_factory=lambda: MappingProxyType({}))
    layout: Layout = field(default_factory=Layout)
    rules: SyncRules = NO_RULES
    logged: LoggedColumns = field(default_factory=LoggedColumns)
    """The columns of each row that the log keeps for sync rules."""
    tombstone_horizons: Mapping[str, Stamp] = field(default_factory=lambda: MappingProxyType({}))
    """By table, the stamp up to which deletions may be forgotten. A table that never had any
    forgotten is not in it. See `lakesync.core.forgetting`."""
    strict: bool = False
    """Only tables with a schema may be written."""
    tables: Mapping[str, frozenset[str]] = field(default_factory=lambda: MappingProxyType({}))
    """Tables without a schema that were admitted, each with its columns. A table or column must be
    listed here or have a schema before it is written, so the two together name all that exist."""
    declared: Mapping[str, Declared] = field(default_factory=lambda: MappingProxyType({}))
    """Of tables without a schema that clients declared, by whom."""
    deleted_ms: int = 0
    """When the gateway was deleted, permanently; 0 if it was not."""
    flushing: Flushing = BY_SCHEDULE

    unknown: Unknown = field(default_factory=Unknown, compare=False, repr=False)

    def check_not_deleted(self) -> None:
        """Refuse a deleted gateway.

        Raises:
            GatewayDeleted: the gateway is deleted.
        """
        if self.deleted_ms:
            raise GatewayDeleted(GatewayDeleted.ANSWER)

    def knows(self, table: str) -> bool:
        """Return whether the table is one of the gateway's."""
        return table in self.schemas or table in self.tables

    def knows_names(self, delta: Delta) -> bool:
        """Return whether the gateway has the table, and the table has the columns."""
        if delta.table in self.schemas:
            return True
        columns = self.tables.get(delta.table)
        return columns is not None and all(name in columns for name, _ in delta.columns)

    def check_table(self, table: str) -> None:
        """Refuse a table that exists under another spelling.

        Raises:
            NameTaken: it does.
        """
        first = self.spelling_of(table)
        if first != table:
            raise name_taken(table, first, "table")

    def spelling_of(self, table: str) -> str:
        """Return the spelling in force of a table; the one given, if the table is new."""
        if self.knows(table):
            return table
        return first_spellings([*self.schemas, *self.tables]).get(folded(table), table)

    @property
    def is_judged(self) -> bool:
        """Return whether rules affect a push: they decide on it, or read columns that it logs."""
        return bool(self.rules.buckets or self.rules.omit) or bool(self.logged)

    @property
    def schema_version(self) -> int:
        """A number that grows with every schema that is registered or changed; 0 without any."""
        return sum(schema.version for schema in self.schemas.values())

    def keeps_tombstones(self, table: str) -> bool:
        """Return whether the table's deletions are never forgotten."""
        schema = self.schemas.get(table)
        return schema is not None and schema.keep_tombstones

    def as_read(self, table: str, state: RowState) -> RowState:
        """Return a row as its table reads it; see `lakesync.core.merge.as_read`."""
        return as_read(state, delete_wins=self.delete_wins(table))

    def delete_wins(self, table: str) -> bool:
        """Return whether no update restores a deleted row of the table."""
        schema = self.schemas.get(table)
        return schema is not None and schema.delete_wins

    def appends(self, table: str) -> bool:
        """Return whether the table's rows are events, without row states."""
        schema = self.schemas.get(table)
        return schema is not None and schema.append


def config_to_json(config: GatewayConfig) -> dict[str, Any]:
    """Write a configuration as plain JSON values; `config_from_json` reads it back.

    Fields that a later release wrote are kept for declarations that have not changed since.
    """
    unknown = config.unknown
    rules = unknown.rules if config.rules == unknown.read_rules else rules_to_json(config.rules)
    schemas = [
        {**unknown.schemas.get((schema.table, schema.version), {}), **schema_to_json(schema)}
        for schema in config.schemas.values()
    ]
    deleted = {"deletedMs": config.deleted_ms} if config.deleted_ms else {}
    is_plain = config.flushing == BY_SCHEDULE
    flushing = {} if is_plain else {"flushing": flushing_to_json(config.flushing)}
    declared = {
        name: [noted.by, dict(sorted(noted.columns.items()))]
        for name, noted in sorted(config.declared.items())
    }
    return {
        **unknown.fields,
        **deleted,
        **flushing,
        **({"declared": declared} if declared else {}),
        "format": max(unknown.format, WRITES),
        "version": config.version,
        "schemas": schemas,
        "layout": dict(config.layout.tables),
        "former": sorted(config.layout.former),
        "moves": config.layout.moves,
        "rules": rules,
        "logged": logged_to_json(config.logged),
        "tombstoneHorizons": dict(config.tombstone_horizons),
        "strict": config.strict,
        "tables": sorted(config.tables),
        "columns": {name: sorted(known) for name, known in sorted(config.tables.items()) if known},
    }


def config_from_json(body: Mapping[str, Any]) -> GatewayConfig:
    """Read what `config_to_json` wrote, in any release; see `lakesync.core.stored`.

    Raises:
        UpgradeRequired: only a later release can read it.
    """
    needed = body["format"]
    check_format(needed, "the configuration")
    schemas = {item["table"]: schema_from_stored(item) for item in body["schemas"]}
    layout = Layout(MappingProxyType(body["layout"]), body["moves"], frozenset(body["former"]))
    rules = rules_from_stored(body["rules"]) if "rules" in body else NO_RULES
    logged = logged_from_json(body["logged"]) if "logged" in body else LoggedColumns()
    columns = body.get("columns", {})
    return GatewayConfig(
        body["version"],
        MappingProxyType(schemas),
        layout,
        rules,
        logged,
        tombstone_horizons=MappingProxyType(body.get("tombstoneHorizons", {})),
        strict=body.get("strict", False),
        tables=MappingProxyType(
            {name: frozenset(columns.get(name, ())) for name in body.get("tables", ())}
        ),
        declared=MappingProxyType(
            {name: Declared(by, noted) for name, (by, noted) in body.get("declared", {}).items()}
        ),
        deleted_ms=body.get("deletedMs", 0),
        flushing=flushing_from_stored(body.get("flushing", {})),
        unknown=replace(_unknown_of(body, rules), format=needed),
    )


def _unknown_of(body: Mapping[str, Any], rules: SyncRules) -> Unknown:
    whole = GatewayConfig(deleted_ms=1, declared={"": Declared()}, flushing=Flushing(1))
    fields = {name: body[name] for name in sorted(body.keys() - config_to_json(whole).keys())}
    schemas = {
        (item["table"], item.get("version", 1)): rest
        for item in body["schemas"]
        if (rest := {name: item[name] for name in sorted(item.keys() - STORED_FIELDS.keys())})
    }
    if "rules" not in body or rules_to_json(rules) == body["rules"]:
        return Unknown(fields=fields, schemas=schemas)
    return Unknown(fields=fields, schemas=schemas, rules=body["rules"], read_rules=rules)
