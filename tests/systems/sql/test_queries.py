"""Queries that are read in a table's place: what they give, and which are refused."""

# ruff: noqa: S608 - statements of an application, on names of these tests

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Final

import pytest
from pydantic import ValidationError

from lakesync.errors import AdapterRefused
from lakesync.result import Err
from lakesync.systems.mysql.mysql_settings import MySqlSettings
from lakesync.systems.postgres.postgres_settings import PostgresSettings
from lakesync.systems.sql.sql_source import SqlConnector
from lakesync.testing.connector_contract import Reader
from tests.support.sources import SqlSource

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tools.local_stack.databases import Database

    Make = Callable[..., SqlSource]

REFUSED: Final = {
    "a deletion": "DELETE FROM {table} RETURNING id, value, changed",
    "an insertion": "INSERT INTO {table} (id) VALUES (99)",
    "a definition": "CREATE TABLE other_of_{table} (id int)",
    "two statements": "SELECT id, changed FROM {table}; SELECT id, changed FROM {table}",
    "a second one behind": "SELECT id, changed FROM {table}; DELETE FROM {table}",
    "one that leaves its parentheses": (
        "SELECT id, changed FROM {table}) AS x; DELETE FROM {table}; SELECT * FROM (SELECT 1"
    ),
    "one that closes them twice": "SELECT id, changed FROM {table}) AS x WHERE (1 = 1",
    "no SQL": "SELEC id FROM {table}",
    "a table that is not there": "SELECT id, changed FROM none_such_{table}",
    "two columns of one name": "SELECT id, value AS Id, changed FROM {table}",
    "no column of the key": "SELECT value, changed FROM {table}",
    "no cursor column": "SELECT id, value FROM {table}",
    "a cursor column of no times": "SELECT id, value, id AS changed FROM {table}",
    "a key that is NULL": "SELECT id, changed FROM {table} UNION ALL SELECT NULL, now()",
}
OF_POSTGRES: Final = {
    "a write within": "WITH x AS (DELETE FROM {table} RETURNING *) SELECT * FROM x",
    "a function that writes": "SELECT id, changed, lo_create(0) AS made FROM {table}",
    "a parameter": "SELECT id, changed FROM {table} WHERE id = $1",
    "a new table": "SELECT id, changed INTO other_of_{table} FROM {table}",
    "a lock": "SELECT id, changed FROM {table} FOR UPDATE",
}
OF_MARIADB: Final = {
    "a file": "SELECT id, changed FROM {table} INTO OUTFILE '/tmp/{table}'",
    "a parameter": "SELECT id, changed FROM {table} WHERE id = ?",
}
VALUES: Final = {
    "postgres": {
        "bool": "true", "int8": "9007199254740993", "numeric(12,2)": "1.20", "numeric": "1.5",
        "float8": "0.1", "text": "'é'", "varchar(7)": "'a'", "date": "'2026-05-17'",
        "timestamp": "'2026-05-17 08:00:00.1'", "timestamptz(3)": "'2026-05-17 08:00:00.123+02'",
        "bytea": "'\\x00ff'", "jsonb": "'{\"a\": [1]}'", "int[]": "'{1,2}'",
        "uuid": "'6f3c1f5e-0000-4000-8000-000000000001'",
    },
    "mariadb": {
        "tinyint(1)": "1", "tinyint": "-7", "smallint unsigned": "65535", "mediumint": "-8388608",
        "int": "-2147483648", "bigint": "9007199254740993",
        "bigint unsigned": "18446744073709551615", "decimal(12,2)": "-1234567890.20",
        "decimal(9,0) unsigned": "999999999", "float": "0.5", "double": "0.1",
        "date": "'2026-05-17'", "time(3)": "'-01:30:00.5'",
        "datetime(6)": "'2026-05-17 08:00:00.1'", "timestamp": "'2026-05-17 08:00:00'",
        "year": "2026", "char(3)": "'a'", "varchar(7)": "'é'", "text": "'t'",
        "binary(2)": "'ab'", "varbinary(7)": "x'00ff'", "longblob": "x'00ff'", "bit(9)": "b'101'",
        "enum('a','b')": "'b'", "set('a','b')": "'a,b'",
    },
}  # fmt: skip
KINDS: Final = ("postgres", "mariadb")


@pytest.fixture
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    """Make sources, which are closed in the end."""
    made: list[SqlSource] = []

    def source(kind: str, query: str, *, by_time: bool = True, **more: Any) -> SqlSource:
        database: Database = request.getfixturevalue(kind)
        made.append(SqlSource(database, kind, by_time=by_time, query=query, **more))
        return made[-1]

    yield source
    for each in made:
        each.close()


@pytest.mark.emulator
@pytest.mark.law("N5")
@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        *itertools.product(KINDS, REFUSED),
        *(("postgres", fault) for fault in OF_POSTGRES),
        *(("mariadb", fault) for fault in OF_MARIADB),
    ],
)
def test_a_query_that_cannot_be_read_is_refused_when_it_is_registered(
    kind: str, fault: str, make: Make
) -> None:
    own = OF_POSTGRES if kind == "postgres" else OF_MARIADB
    query = (REFUSED | own)[fault]
    source = make(kind, query, columns=["id", "value"] if "name" in fault else None)
    source.put({"1": "a"})

    checked = source.connector().check()

    assert isinstance(checked, Err)
    assert isinstance(checked.error, AdapterRefused)
    assert source.table in checked.error.message
    assert source.count() == 1


@pytest.mark.emulator
@pytest.mark.law("N5")
@pytest.mark.parametrize("kind", KINDS)
def test_columns_of_a_query_have_the_types_and_values_of_their_table(kind: str, make: Make) -> None:
    types = VALUES[kind]
    source = make(kind, "SELECT * FROM {table}", by_time=False)
    for place, sql_type in enumerate(types):
        source.run(f"ALTER TABLE {source.table} ADD COLUMN c{place} {sql_type} NULL")
    source.put({"1": "a"})
    for place, value in enumerate(types.values()):
        source.run(f"UPDATE {source.table} SET c{place} = {value}")
    table = make(kind, "", by_time=False)
    settings = source.settings.model_copy(
        update={"tables": [source.settings.tables[0].model_copy(update={"query": None})]}
    )
    plain = SqlConnector(source.source, settings, table.storage)

    queried = source.connector()
    [of_query], [of_table] = (each.columns().unwrap() for each in (queried, plain))
    pages = [
        each.read(source.table, "", rows_max=9, poll_ms=1).unwrap() for each in (queried, plain)
    ]
    plain.close()

    assert [column[:2] for column in of_query.columns] == [
        column[:2] for column in of_table.columns
    ]
    assert of_query.key == of_table.key == ("id",)
    assert pages[0].changes == pages[1].changes
    assert len(pages[0].changes) == 1


@pytest.mark.emulator
@pytest.mark.law("N4", "N5")
@pytest.mark.parametrize("way", ["by time", "by difference"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_row_whose_key_becomes_null_is_reported_and_all_others_are_read(
    kind: str, way: str, make: Make
) -> None:
    query = "SELECT NULLIF(id, 7) AS id, value, changed FROM {table}"
    source = make(kind, query, by_time=way == "by time")
    expected = {f"{number}": f"v{number}" for number in range(1, 7)}
    source.put(expected)
    assert "\n" not in source.connector().check().unwrap()
    source.put({"7": "x"})

    reader = Reader(source)
    pages = reader.poll(rows_max=2)

    assert reader.rows == expected
    [unread] = [row for page in pages for row in page.unreadable]
    assert "its key is NULL (id)" in unread.reason


@pytest.mark.emulator
@pytest.mark.law("N4", "N5")
def test_duplicate_key_is_reported_and_one_of_its_rows_is_read(make: Make) -> None:
    query = "SELECT id, value, changed FROM {table} UNION ALL SELECT 1, 'again', now()"
    source = make("postgres", query, by_time=False)
    source.put({"1": "a", "2": "b"})
    reader = Reader(source)
    polls = [reader.poll() for _ in range(2)]

    for pages in polls:
        [unread] = [row for page in pages for row in page.unreadable]
        assert unread.row_id == "1"
        assert "several rows have this key" in unread.reason
    assert set(reader.rows) == {"1", "2"}


@pytest.mark.parametrize("kind", [PostgresSettings, MySqlSettings])
@pytest.mark.parametrize(
    ("table", "more"),
    [
        ({"query": "SELECT 1 AS id"}, {}),
        ({"query": "SELECT 1 AS id", "key": ["id"]}, {"changes": True}),
        ({"query": "SELECT 1 AS id\0) x", "key": ["id"]}, {}),
        ({"query": "", "key": ["id"]}, {}),
    ],
    ids=["without a key", "with changes", "with a NUL", "empty"],
)
def test_query_settings_that_lack_a_key_or_contradict_are_refused(
    kind: type[PostgresSettings], table: dict[str, Any], more: dict[str, Any]
) -> None:
    body = {"host": "h", "database": "d", "user": "u", "password": "p"}
    with pytest.raises(ValidationError, match=r"quer|key"):
        kind.model_validate(body | {"tables": [{"name": "t"} | table]} | more)
