"""Destinations under test: one database each, batches made of deltas, what lies in their tables."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from hypothesis import strategies as st

from lakesync.adapters.sql.adapter import SqlAdapter
from lakesync.core.delta import Op, make_delta
from lakesync.systems.mysql.mysql_dialect import MySql
from lakesync.systems.postgres.postgres_dialect import Postgres
from tests.support.hosts import LOOPBACK
from tests.support.interrupted import interrupted
from tests.support.strategies import ids, json_values

if TYPE_CHECKING:
    from lakesync.adapters.sql.standard import Dialect
    from lakesync.core.delta import Delta
    from tools.local_stack.databases import Database

_numbers = itertools.count()


class Destination(Protocol):
    """A database of one kind, shared by many tests; each takes gateways and tables of its own."""

    def adapter(self, gateway: str = "", *, history_ms: int | None = None) -> Any:
        """Return the adapter of a gateway; of one that nobody else uses, unless it is named."""
        ...

    def interrupted(self, cut: int) -> Destination:
        """Return the same database, lost at the statement or commit with this number."""
        ...

    @property
    def statements(self) -> int:
        """How many statements and commits one that is `interrupted` has been asked for."""
        ...

    def close(self) -> None: ...

    def run(self, statement: str) -> object:
        """Run a statement as somebody else who uses the database."""
        ...

    def set_props(self, table: str, text: str) -> None:
        """Set every row's ``props`` as somebody else who uses the database."""
        ...

    def sql_type(self, type_name: str) -> str: ...

    def columns(self, table: str) -> set[str]: ...

    def rows(self, table: str, *columns: str) -> dict[str, tuple[Any, ...]]:
        """Return a table's rows by row id."""
        ...


@dataclass(frozen=True)
class SqlDestination:
    """A `Destination` that has a dialect."""

    dialect: Any
    _open: list[SqlAdapter] = field(default_factory=list)

    def interrupted(self, cut: int) -> SqlDestination:
        """Return the same database, to be lost; closed with this one."""
        return self.variant(interrupted(self.dialect, cut))

    def variant(self, dialect: Dialect) -> SqlDestination:
        """Return the same database by another dialect; closed with this one."""
        return replace(self, dialect=dialect)

    @property
    def statements(self) -> int:
        """How many statements and commits were asked for."""
        count: int = self.dialect.statements
        return count

    def close(self) -> None:
        while self._open:
            self._open.pop().close()

    def adapter(self, gateway: str = "", *, history_ms: int | None = None) -> SqlAdapter:
        """Return the adapter of a gateway; of one that nobody else uses, unless it is named."""
        adapter = SqlAdapter(self.dialect, gateway or new_gateway(), history_ms=history_ms)
        self._open.append(adapter)
        return adapter

    def run(self, statement: str, *parameters: object) -> list[tuple[Any, ...]]:
        """Run a statement as somebody else who uses the database."""
        connection = self.dialect.connect()
        try:
            cursor = connection.cursor()
            cursor.execute(statement, parameters)
            rows = [tuple(row) for row in cursor.fetchall()] if cursor.description else []
            connection.commit()
        finally:
            connection.close()
        return rows

    def set_props(self, table: str, text: str) -> None:
        """Set every row's ``props``."""
        self.run(f"UPDATE {table} SET props = %s", text)  # noqa: S608 - our own name

    def sql_type(self, type_name: str) -> str:
        sql_type: str = self.dialect.column_type(type_name, in_key=False)
        return sql_type

    def columns(self, table: str) -> set[str]:
        connection = self.dialect.connect()
        try:
            names: set[str] = self.dialect.existing_columns(connection.cursor(), table)
        finally:
            connection.close()
        return names

    def rows(self, table: str, *columns: str) -> dict[str, tuple[Any, ...]]:
        names = ", ".join(map(self.dialect.quote, ["row_id", *columns]))
        rows = self.run(f"SELECT {names} FROM {self.dialect.quote(table)}")  # noqa: S608 - quoted
        return {row_id: tuple(values) for row_id, *values in rows}


def postgres_dialect(database: Database) -> Postgres:
    return Postgres(
        f"postgresql://{database.user}:{database.password}@{database.host}:{database.port}"
        f"/{database.database}",
        LOOPBACK,
    )


def mariadb_dialect(database: Database) -> MySql:
    return MySql(
        database.host,
        database.user,
        database.password,
        database.database,
        database.port,
        is_mariadb=not database.is_mysql,
        hosts=LOOPBACK,
    )


def mariadb_url(database: Database) -> str:
    return (
        f"{'mysql' if database.is_mysql else 'mariadb'}://{database.user}:{database.password}"
        f"@{database.host}:{database.port}/{database.database}"
    )


def new_gateway() -> str:
    return f"g{next(_numbers)}"


def new_table() -> str:
    """Return the name of a table that nobody else uses."""
    return f"t{next(_numbers)}"


@st.composite
def changed_rows(draw: st.DrawFn, table: str) -> list[Delta]:
    """Deltas of a few rows, with ties and repeats among them."""
    rows = draw(st.lists(ids, min_size=1, max_size=3, unique=True))
    said = st.tuples(
        st.sampled_from([Op.INSERT, Op.UPDATE, Op.DELETE]),
        st.sampled_from(rows),
        st.dictionaries(st.sampled_from(["a", "B", "order"]), json_values, max_size=3),
        st.sampled_from(["c1", "é"]),
        st.integers(1, 6),
    )
    return [
        make_delta(op, table, row, {} if op is Op.DELETE else columns, client_id=client, hlc=hlc)
        for op, row, columns, client, hlc in draw(st.lists(said, max_size=12))
    ]
