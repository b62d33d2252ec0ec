"""Declaring: which names a push may declare, and how a configuration is put in force for all.

A table or column that no schema names exists from the first push that writes it. All of a gateway's
clients share one configuration, so no user may use it up, or keep an administrator out of it:

- A user declares at most `CLIENT_TABLES_MAX` tables that no schema names, and `CLIENT_COLUMNS_MAX`
  columns in them. Who declared what is noted with the table, and forgotten with its schema.
- Where there are rules, a user declares only tables that a bucket covers.
- Tables without a schema are at most `DECLARED_TABLES_MAX`, and their names `DECLARED_BYTES_MAX`:
  what is left is the administrators', for schemas. A connector, which an administrator set up, is
  bound by this alone.

Law S7: ``docs/spec/schema.md``.

A changed configuration is in force for all writers at once, however busy the gateway is. Law B6:
``docs/spec/commit.md``.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from lakesync.core.clock import STAMP_MAX, doubled, stamp
from lakesync.core.config import Declared
from lakesync.core.gateway_identity import new_epoch
from lakesync.core.layout import DEFAULT_SHARD, MAIN_LANE
from lakesync.core.names import first_spellings, folded, name_taken
from lakesync.errors import (
    Contention,
    NameTaken,
    TableNotDeclared,
    TooManyColumns,
    TooManyTables,
    Unavailable,
)
from lakesync.log.lanes import close_lanes
from lakesync.ports import NO_HEAD, ConfigMoved, HeadBusy, HeadMoved

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from lakesync.core.clock import Stamp
    from lakesync.core.config import GatewayConfig
    from lakesync.core.delta import Delta
    from lakesync.ports import Buffer, Chance, Head, WallClock

# --- names that a push may declare ----------------------------------------------------------------


TABLES_MAX: Final = 500
"""Tables of one gateway, with or without a schema. Each is two tables in the lake, and has its own
objects in every flush and checkpoint."""
TABLE_COLUMNS_MAX: Final = 1_000
"""Columns of one table without a schema, over all its rows. Each is a column of the lake's table,
and SQLite allows 2,000."""
CLIENT_TABLES_MAX: Final = 20
"""Tables that no schema names and that were declared by pushes of one user."""
CLIENT_COLUMNS_MAX: Final = 1_000
"""Columns of tables that no schema names and that were declared by pushes of one user."""
CLIENT_TABLE_COLUMNS_MAX: Final = 500
"""The same of one table: half of its columns, so that nobody can use them up."""
DECLARED_TABLES_MAX: Final = 450
"""Tables of one gateway that no schema names; 50 more are left for schemas."""
DECLARED_BYTES_MAX: Final = 200 * 1024
"""The names of tables without a schema, and of their columns. The rest of a configuration is left
for schemas and rules."""
_TABLE_BYTES: Final = 48
"""What a table takes in the configuration beside names: who declared it."""
_NAME_BYTES: Final = 3
_DIGEST_LENGTH: Final = 16


NOT_DECLARED: Final = (NameTaken, TableNotDeclared, TooManyTables, TooManyColumns)
"""Why names are not declared."""


def user_digest(user: str) -> str:
    """Return what stands for a user in the configuration, which does not name people."""
    return hashlib.sha256(user.encode()).hexdigest()[:_DIGEST_LENGTH]


def has_room_for_a_table(config: GatewayConfig) -> bool:
    """Return whether a schema may make one more table."""
    return len(config.tables.keys() | config.schemas.keys()) < TABLES_MAX


def without_table(config: GatewayConfig, table: str) -> GatewayConfig:
    """Return the configuration without a table that no schema names."""
    tables = {name: columns for name, columns in config.tables.items() if name != table}
    declared = {name: noted for name, noted in config.declared.items() if name != table}
    return replace(config, tables=MappingProxyType(tables), declared=MappingProxyType(declared))


def admitting(config: GatewayConfig, user: str | None, deltas: Iterable[Delta]) -> GatewayConfig:
    """Return the configuration with the names of deltas, as far as they may be declared."""
    declaring = Declaring(config, user)
    for delta in deltas:
        with suppress(*NOT_DECLARED):
            declaring.admit(delta)
    return declaring.configuration()


class Declaring:
    """Admits the names of one push, one delta after the other.

    Cost: nothing for names that exist; for the first new name, one walk over the declared names.

    Args:
        config: the configuration in force.
        user: who pushes; None for a connector.
    """

    def __init__(self, config: GatewayConfig, user: str | None) -> None:
        self._config = config
        self._user = user_digest(user) if user is not None else ""
        self._is_bound = user is not None
        self._columns: dict[str, set[str]] = {}
        """Of the tables that have new names, all columns."""
        self._new_columns: dict[str, int] = {}
        self._spelled: dict[str, str] = {}
        """The tables' spellings in force, by folded name; empty until the first new name."""
        self._spelled_columns: dict[str, dict[str, str]] = {}
        self._tables = self._bytes = self._my_tables = self._my_columns = 0

    def admit(self, delta: Delta) -> None:
        """Declare the names of a delta that are new: of its table, if that has no schema.

        Raises:
            NameTaken: the table, or a column, exists under another spelling.
            TableNotDeclared: neither a bucket nor a schema names the table.
            TooManyTables, TooManyColumns: there is no room for it.
        """
        table, known = delta.table, self._columns.get(delta.table)
        names = [name for name, _ in delta.columns]
        if known is None and self._config.knows_names(delta):
            return
        if known is None:
            self._begin()
            stored = self._config.tables.get(table)
            if stored is None:
                self._check_new_table(table)
            known = set(stored or ())
        new = [name for name in names if name not in known]
        self._check_columns(table, known, new)
        self._take(table, known, new)

    def configuration(self) -> GatewayConfig:
        """Return the configuration with all that was admitted; the same one, if nothing is new."""
        if not self._columns:
            return self._config
        tables, declared = dict(self._config.tables), dict(self._config.declared)
        for table, columns in self._columns.items():
            is_new = table not in tables
            tables[table] = frozenset(columns)
            if self._is_bound:
                noted = declared.get(table, Declared())
                count = noted.columns.get(self._user, 0) + self._new_columns.get(table, 0)
                by = self._user if is_new else noted.by
                counts = {**noted.columns, self._user: count} if count else noted.columns
                declared[table] = Declared(by, MappingProxyType({**counts}))
        return replace(
            self._config, tables=MappingProxyType(tables), declared=MappingProxyType(declared)
        )

    def _begin(self) -> None:
        """Count what is declared, once."""
        if self._spelled or self._tables:
            return
        config = self._config
        self._spelled = first_spellings([*config.schemas, *config.tables])
        for table, columns in config.tables.items():
            if table in config.schemas:
                continue
            noted = config.declared.get(table, Declared())
            self._tables += 1
            self._bytes += _size(table, columns)
            self._my_tables += self._is_bound and noted.by == self._user
            self._my_columns += noted.columns.get(self._user, 0)

    def _check_new_table(self, table: str) -> None:
        config, first = self._config, self._spelled.get(folded(table))
        if first is not None:
            raise name_taken(table, first, "table")
        if self._is_bound and config.rules.buckets and not config.rules.covering(table):
            raise TableNotDeclared(
                f"no bucket of the sync rules and no schema names the table {table}, so nobody "
                "could read it; it is tried again once one does",
                field="table",
            )
        if len(self._spelled) >= TABLES_MAX or self._tables >= DECLARED_TABLES_MAX:
            raise TooManyTables(
                f"this gateway has as many tables as it may have, and {table} would be one more; "
                "use those there are, or another gateway, or register a schema for it",
                field="table",
            )
        if self._is_bound and self._my_tables >= CLIENT_TABLES_MAX:
            raise TooManyTables(
                f"{CLIENT_TABLES_MAX} tables without a schema were declared by this user, and "
                f"{table} would be one more; register a schema for it",
                field="table",
            )

    def _check_columns(self, table: str, known: set[str], new: list[str]) -> None:
        spelled = self._spelled_columns.get(table)
        if spelled is None:
            spelled = self._spelled_columns[table] = first_spellings(known)
        for name in new:
            first = spelled.get(folded(name), name)
            if first != name:
                raise name_taken(name, first, "column")
        if len(known) + len(new) > TABLE_COLUMNS_MAX:
            raise TooManyColumns(
                f"a table without a schema may have {TABLE_COLUMNS_MAX} columns; put "
                "what varies into one column, as an object",
                field="columns",
            )
        noted = self._config.declared.get(table, Declared()).columns.get(self._user, 0)
        in_table = noted + self._new_columns.get(table, 0) + len(new)
        if (
            self._is_bound
            and new
            and (
                in_table > CLIENT_TABLE_COLUMNS_MAX
                or self._my_columns + len(new) > CLIENT_COLUMNS_MAX
            )
        ):
            raise TooManyColumns(
                f"one user may declare {CLIENT_TABLE_COLUMNS_MAX} columns of a table without a "
                f"schema, and {CLIENT_COLUMNS_MAX} in all; register a schema",
                field="columns",
            )
        size = _size("", new) if known else _size(table, new)
        if self._bytes + size > DECLARED_BYTES_MAX:
            raise TooManyColumns(
                f"the names of tables without a schema may take {DECLARED_BYTES_MAX} bytes; "
                "register schemas",
                field="columns",
            )

    def _take(self, table: str, known: set[str], new: list[str]) -> None:
        is_new = table not in self._columns and table not in self._config.tables
        self._bytes += _size(table if is_new else "", new)
        self._my_columns += len(new)
        if is_new:
            self._tables += 1
            self._my_tables += 1
            self._spelled[folded(table)] = table
        known.update(new)
        self._columns[table] = known
        self._spelled_columns[table].update((folded(name), name) for name in new)
        self._new_columns[table] = self._new_columns.get(table, 0) + len(new)


def _size(table: str, columns: frozenset[str] | list[str]) -> int:
    """Return about how much of the configuration names take; no table is one that is there."""
    size = sum(map(len, columns)) + _NAME_BYTES * len(columns)
    return size + 2 * len(table) + _TABLE_BYTES if table else size


# --- a configuration is put in force --------------------------------------------------------------


_TRIES_MAX: Final = 60
_BACK_OFF_MS: Final = 40
_BACK_OFF_MS_MAX: Final = 200
_LEAD_MS: Final = 100
_PAUSE_MS: Final = 2_000
"""How long no lane is opened, so that a configuration can be changed under many writes."""
_TOO_BUSY: Final = "the gateway is too busy to change its configuration; try again"


class Declare:
    """Changes the configurations of gateways. Law B6: ``docs/spec/commit.md``."""

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

    def __call__(
        self,
        gateway: str,
        change: Callable[[GatewayConfig], GatewayConfig],
    ) -> GatewayConfig:
        """Put a changed configuration in force; after this returns, it decides every push.

        Args:
            gateway: the gateway's id.
            change: gives the new configuration; the same object if nothing is to be done.

        Raises:
            Unavailable: the gateway or its store is too busy.
            Conflict: the configuration has outgrown what can be stored.
            GatewayDeleted: the gateway was deleted.
        """
        error: Unavailable = Contention(_TOO_BUSY)
        for attempt in range(_TRIES_MAX):
            try:
                return self._tried(gateway, change, stamp(_LEAD_MS) if attempt else 0)
            except (HeadMoved, HeadBusy, ConfigMoved):
                error = Contention(_TOO_BUSY)  # or another administrator is changing it
            except Unavailable as unavailable:
                error = unavailable
            bound_ms = doubled(_BACK_OFF_MS, _BACK_OFF_MS_MAX, attempt)
            self._sleep_ms(self._chance.jitter() * bound_ms)
        raise error

    def _tried(
        self, gateway: str, change: Callable[[GatewayConfig], GatewayConfig], lead: Stamp
    ) -> GatewayConfig:
        before = self._buffer.config(gateway)
        # Read before the change is made: what it looks up in the log stays true, as nothing is
        # saved if a commit follows.
        heads = self._buffer.heads(gateway, STAMP_MAX)
        wanted = change(before)
        if wanted is before:
            return before
        before.check_not_deleted()
        wanted = replace(wanted, version=before.version + 1)
        main, now_ms = heads.get(MAIN_LANE), self._wall_clock()
        lanes = (main or NO_HEAD).lanes
        if len(lanes.open()) > 1:
            self._close_lanes(gateway, heads, now_ms)
            raise Contention(_TOO_BUSY)  # and once they are closed, try again
        top = max((main or NO_HEAD).commit, lanes.quiet)
        # Where pushes advance heads all the time, a lead keeps them from overtaking this change.
        to = max(top + 1, stamp(now_ms)) + lead
        if wanted.logged != before.logged:
            wanted = replace(wanted, logged=replace(wanted.logged, since=to))
        epoch = (main or NO_HEAD).epoch or new_epoch(self._chance.token())
        self._buffer.save_config(gateway, wanted, main, lanes.paused(0), to, epoch=epoch)
        return wanted

    def _close_lanes(self, gateway: str, heads: Mapping[str, Head], now_ms: int) -> None:
        """Close all lanes but the main one, so that the main lane's head alone decides."""
        main = heads[MAIN_LANE]
        if main.lanes.paused_until_ms <= now_ms:
            paused = main.lanes.paused(now_ms + _PAUSE_MS)
            if not self._buffer.change_lanes(gateway, main, paused):
                return
            heads = {**heads, MAIN_LANE: replace(main, lanes=paused)}
        shards = main.lanes.counts
        close_lanes(self._buffer, gateway, heads, {s: int(s == DEFAULT_SHARD) for s in shards})
