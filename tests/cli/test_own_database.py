"""SQL that a user gives to DuckDB reaches the tables of the lake, and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import duckdb
import pyarrow as pa
import pytest

from lakesync.analysis.connection import UsageFault
from lakesync.analysis.lake_queries import RowDiff, matching, own_database, run
from lakesync.errors import NotFound

if TYPE_CHECKING:
    from pathlib import Path

    from lakesync.analysis.lake import Needed
    from lakesync.analysis.past import AsOf

_REFUSED = r"the query was refused|there is no table"
DUCKDBS_OWN = ("duckdb_tables", "pg_class", "pragma_database_list", "tables", "columns")


class SomeTables:
    """Tables of one column and one row."""

    def __init__(self, *names: str) -> None:
        self._names = names

    def names(self) -> list[str]:
        return list(self._names)

    def schema(
        self, name: str, wanted: AsOf | None = None, *, all_columns: bool = False
    ) -> pa.Schema:
        return self.read(name, wanted, all_columns=all_columns).schema

    def read(
        self,
        name: str,
        wanted: AsOf | None = None,
        *,
        all_columns: bool = False,
        needed: Needed | None = None,
    ) -> pa.Table:
        assert (wanted, all_columns) == (None, False)
        assert needed is None or needed.columns <= {"name"}
        return pa.table({"name": [name]})


def test_a_query_reads_and_writes_no_file(tmp_path: Path) -> None:
    (tmp_path / "secret.csv").write_text("a,b\n1,2\n")
    for sql in (
        "SELECT * FROM 'FOLDER/secret.csv'",
        "SELECT * FROM read_csv('FOLDER/secret.csv')",
        "SELECT content FROM read_text('FOLDER/secret.csv')",
        "SELECT * FROM glob('FOLDER/*')",
        "SELECT name FROM todos WHERE name IN (SELECT content FROM read_text('FOLDER/secret.csv'))",
        "SELECT * FROM query('SELECT * FROM read_csv(''FOLDER/secret.csv'')')",
        "COPY (SELECT * FROM todos) TO 'FOLDER/written.csv'",
        "EXPORT DATABASE 'FOLDER/written.csv'",
        "ATTACH 'FOLDER/written.csv' AS other",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SET enable_external_access = true",
        "SELECT 1; COPY (SELECT 1) TO 'FOLDER/written.csv'",
    ):
        with pytest.raises((UsageFault, NotFound), match=_REFUSED):
            run(SomeTables("todos"), sql.replace("FOLDER", str(tmp_path)))
    assert [path.name for path in tmp_path.iterdir()] == ["secret.csv"]


def test_user_sql_can_neither_access_files_nor_change_settings(tmp_path: Path) -> None:
    (tmp_path / "secret.csv").write_text("a\n1\n")
    rows = pa.table({"a": [1]})
    with own_database() as database:
        for sql in (
            "SELECT * FROM read_csv('FOLDER/secret.csv')",
            "COPY (SELECT 1) TO 'FOLDER/written.csv'",
            "SET enable_external_access = true",
            "SET lock_configuration = false",
            "INSTALL httpfs",
            "SELECT * FROM rows",  # a variable of this program
        ):
            with pytest.raises(duckdb.Error):
                database.execute(sql.replace("FOLDER", str(tmp_path)))
    assert rows.num_rows == 1


def test_the_where_condition_of_a_restore_reads_no_file(tmp_path: Path) -> None:
    (tmp_path / "secret.csv").write_text("a\n1\n")
    diff = RowDiff("r1", None, {"a": b"1"})
    where = "a = (SELECT a FROM read_csv('FOLDER/secret.csv'))".replace("FOLDER", str(tmp_path))
    with pytest.raises(UsageFault, match="--where was refused"):
        list(matching([diff], where, {"a": ("integer", "a")}))
    assert list(matching([diff], "a = 1", {"a": ("integer", "a")})) == [diff]


@pytest.mark.parametrize("name", DUCKDBS_OWN)
def test_a_lake_table_takes_precedence_over_a_duckdb_table_of_its_name(name: str) -> None:
    for reference in (name, name.upper(), f"main.{name}"):
        assert run(SomeTables(name), f"FROM {reference}").to_pylist() == [{"name": name}]


@pytest.mark.parametrize(
    "sql",
    [
        *(f"FROM {name}" for name in (*DUCKDBS_OWN, "sqlite_master", "duckdb_views")),
        "SELECT * FROM information_schema.tables",
        "SELECT * FROM pg_catalog.todos",
        "SELECT * FROM duckdb_settings()",
        "SELECT * FROM query_table('sqlite_master')",
        "SELECT (SELECT count(*) FROM duckdb_settings()) FROM todos",
        "WITH sqlite_master AS (SELECT * FROM sqlite_master) SELECT * FROM sqlite_master",
        "SHOW TABLES",
        "SHOW ALL TABLES",
        "PRAGMA table_info('todos')",
        "CALL duckdb_tables()",
    ],
)
def test_queries_of_duckdbs_own_tables_are_refused(sql: str) -> None:
    with pytest.raises((UsageFault, NotFound), match=_REFUSED):
        run(SomeTables("todos"), sql)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT name FROM todos",
        'FROM "Todos"',
        "WITH mine AS (SELECT * FROM todos) SELECT name FROM mine",
        "WITH RECURSIVE n AS (SELECT 1 AS i UNION SELECT i + 1 FROM n WHERE i < 3) FROM todos",
        "SELECT name FROM range(1), todos JOIN (SELECT name FROM todos) AS other USING (name)",
        "SELECT t.name FROM todos AS t, unnest([1]) AS u(x)",
        "SELECT name FROM (SELECT * FROM todos UNION SELECT * FROM todos)",
    ],
)
def test_queries_of_the_lakes_tables_are_answered(sql: str) -> None:
    assert run(SomeTables("Todos"), sql).to_pylist() == [{"name": "Todos"}]


def test_describe_lists_the_columns_of_a_lake_table() -> None:
    (row,) = run(SomeTables("todos"), "DESCRIBE todos").to_pylist()
    assert (row["column_name"], row["column_type"]) == ("name", "VARCHAR")
