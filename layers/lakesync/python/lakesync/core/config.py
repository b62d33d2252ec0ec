"""The configuration of one gateway, as one document, and the versions of what it stores.

Besides what was declared, the document says which columns of a row are logged with each delta, so
that sync rules can be applied to the log: those that the current rules read, and those that earlier
rules read. So an entry has the columns that a filter needs from the time the filter was first
declared, whatever rules were in force in between. Law V7: ``docs/spec/visibility.md``.

A stack has one schedule of flushes, and one threshold from which a push asks for a flush. A gateway
may wait longer than the schedule, have another threshold, and give a table a budget from which it
is flushed before the others. Law D19: ``docs/spec/delivery.md``.

This document and others are read by other releases than the one that wrote them:

- Nothing is checked again: it was checked when it was accepted. A release with stricter checks must
  not refuse what is already stored.
- Fields that a reader does not know are left out, or, in a document that it will write again, kept.
- Each document names the lowest format that a reader must know. A field that may be ignored does
  not change the format. A field without which a reader would show or accept something that it must
  not raises it.
- Items without a format number (heads, row states, the flush state) are read only after the
  gateway's configuration: its format applies to all of them.
- A format is read one release before it is written. So two successive releases may run side by
  side, and the later one may be rolled back.

Law B14: ``docs/spec/commit.md``. The reasons: ``docs/adr/0014-releases-side-by-side.md``.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from lakesync.core.layout import Layout
from lakesync.core.merge import as_read
from lakesync.core.names import first_spellings, folded, name_taken
from lakesync.core.rules import (
    NO_RULES,
    RULE_COLUMNS_MAX,
    SyncRules,
    rules_from_stored,
    rules_to_json,
)
from lakesync.core.schema import STORED_FIELDS, schema_from_stored, schema_to_json
from lakesync.errors import GatewayDeleted, UpgradeRequired

if TYPE_CHECKING:
    from collections.abc import Mapping

    from _typeshed import DataclassInstance

    from lakesync.core.clock import Stamp
    from lakesync.core.delta import Delta
    from lakesync.core.merge import RowState
    from lakesync.core.schema import TableSchema

    T = TypeVar("T", bound=DataclassInstance)

# --- versions of stored formats -------------------------------------------------------------------


READS: Final = 3
"""The latest format that this release reads. No release wrote formats 1 and 2."""
WRITES: Final = 3
"""The format that this release writes: one that the release before it can read."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """Fields of a configuration that a later release wrote and this one does not know."""

    format: int = WRITES
    """The format that a reader must know."""
    fields: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    schemas: Mapping[tuple[str, int], Mapping[str, Any]] = field(
        default_factory=lambda: MappingProxyType({})
    )
    """By table and version."""
    rules: Mapping[str, Any] | None = None
    """The rules as they were written, if they contain more than was read."""
    read_rules: SyncRules | None = None


def check_format(needed: int, what: str) -> None:
    """Refuse a document that only a later release can read.

    Raises:
        UpgradeRequired: a later format is needed.
    """
    if needed > READS:
        raise UpgradeRequired(
            f"{what} was written by a later release (format {needed}, this one reads {READS}); "
            "deploy that release again"
        )


def known(kind: type[T], body: Mapping[str, Any]) -> T:
    """Make a record from those fields of a stored document that it knows; all have defaults."""
    return kind(**{item.name: body[item.name] for item in fields(kind) if item.name in body})


# --- how the log is flushed -----------------------------------------------------------------------


EVERY_S_MAX: Final = 3_600
"""How long a gateway may let its log wait: alarms and backpressure by age begin later than that."""
FLUSH_BYTES_MIN: Final = 16 * 1024
"""The least threshold or budget: a flush costs some calls, however little there is."""
FLUSH_BYTES_MAX: Final = 64 * 1024 * 1024
"""The largest threshold or budget: far below the bytes from which pushes are refused."""
PARQUET: Final = "parquet"
JSON: Final = "json"
FORMATS: Final = (PARQUET, JSON)
"""How objects of batches are written; JSON is larger, and people read it."""
BUDGETS_MAX: Final = 100
"""Tables with a budget of their own."""


@dataclass(frozen=True, slots=True)
class Flushing:
    """What a gateway declares of its flushes."""

    every_s: int = 0
    """How long commits may wait while they are few; 0: until the schedule's next run."""
    bytes: int = 0
    """From how many unflushed bytes on nothing waits; 0: the stack's threshold."""
    tables: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    """By table, the unflushed bytes from which it is flushed before the others."""
    format: str = PARQUET
    """One of `FORMATS`, of the objects of batches."""

    def waits(self, age_ms: int, unflushed_bytes: int) -> bool:
        """Return whether a scheduled flush leaves the log as it is for now."""
        if self.bytes and unflushed_bytes >= self.bytes:
            return False
        return age_ms < self.every_s * 1000


BY_SCHEDULE: Final = Flushing()


def flushing_to_json(flushing: Flushing) -> dict[str, Any]:
    """Write it as plain JSON values, as it can be declared again."""
    return {
        "everyS": flushing.every_s,
        "bytes": flushing.bytes,
        "tables": dict(sorted(flushing.tables.items())),
        "flushFormat": flushing.format,
    }


def flushing_from_stored(body: Mapping[str, Any]) -> Flushing:
    """Read what `flushing_to_json` wrote, in any release."""
    tables = MappingProxyType(dict(body.get("tables", {})))
    form = body.get("flushFormat", PARQUET)
    return Flushing(body.get("everyS", 0), body.get("bytes", 0), tables, form)


# --- which columns are logged ---------------------------------------------------------------------


_EVERY_TABLE: Final = ""


@dataclass(frozen=True, slots=True)
class LoggedColumns:
    """The columns of each table that the log keeps."""

    tables: Mapping[str, frozenset[str]] = field(default_factory=lambda: MappingProxyType({}))
    """By table; the empty name stands for every table."""
    generation: int = 0
    """How often earlier columns had to be given up. It is part of every client's scope: rows that
    were read before cannot be decided in the same way, and are read again."""
    since: Stamp = 0
    """Entries above this stamp have all of these columns."""

    def __bool__(self) -> bool:
        return bool(self.tables)

    def of(self, table: str) -> frozenset[str]:
        """Return the columns of a table."""
        nothing: frozenset[str] = frozenset()
        return self.tables.get(table, nothing) | self.tables.get(_EVERY_TABLE, nothing)

    def with_rules(self, rules: SyncRules) -> LoggedColumns:
        """Return the columns kept under new rules: also the earlier columns, where they fit."""
        grown = {
            table: self.of(table) | rules.columns(table)
            for table in {*self.tables, *_tables(rules)}
        }
        if all(len(columns) <= RULE_COLUMNS_MAX for columns in grown.values()):
            return replace(self, tables=_some(grown))
        needed = {table: rules.columns(table) for table in _tables(rules)}
        return LoggedColumns(_some(needed), self.generation + 1, self.since)


def logged_to_json(logged: LoggedColumns) -> dict[str, Any]:
    """Write them as plain JSON values; `logged_from_json` reads them back."""
    tables = {table: sorted(columns) for table, columns in sorted(logged.tables.items())}
    return {"tables": tables, "generation": logged.generation, "since": logged.since}


def logged_from_json(body: Mapping[str, Any]) -> LoggedColumns:
    """Read what `logged_to_json` wrote."""
    tables = {table: frozenset(columns) for table, columns in body["tables"].items()}
    return LoggedColumns(MappingProxyType(tables), body["generation"], body["since"])


def _tables(rules: SyncRules) -> set[str]:
    return {_EVERY_TABLE} | {table for bucket in rules.buckets for table in bucket.tables}


def _some(tables: Mapping[str, frozenset[str]]) -> Mapping[str, frozenset[str]]:
    return MappingProxyType({table: columns for table, columns in tables.items() if columns})


# --- the configuration ----------------------------------------------------------------------------


CONFIG_BYTES_MAX: Final = 350 * 1024
"""The whole document, as JSON. It is one item, and a DynamoDB item holds 400 KB."""


class Declared(NamedTuple):
    """Who declared a table that no schema names; see `lakesync.log.declare`."""

    by: str = ""
    """The user, as `lakesync.log.declare.user_digest` gives it; empty for a connector's."""
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
    forgotten is not in it. See `lakesync.core.merge`."""
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
    """Read what `config_to_json` wrote, in any release; see `lakesync.core.config`.

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
