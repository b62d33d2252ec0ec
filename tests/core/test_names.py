"""lakesync.core.names: names that are safe in every catalogue and never meet."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lakesync.core.delta import Op, checked_delta
from lakesync.core.messages import checked_first
from lakesync.core.names import (
    KEPT_SUFFIXES,
    flow_database,
    folded,
    in_words,
    is_flow_database,
    is_identifier,
    is_table_name,
    lake_columns,
    lake_database,
    lake_tables,
    staged_column,
)
from lakesync.core.schema import Column, TableSchema
from lakesync.errors import ValidationFailed
from tests.support.strategies import identifiers, texts

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

SAFE = re.compile(r"[a-z][a-z0-9_]*")

look_alikes = st.sampled_from(
    [
        "Todos", "todos", "TODOS", "_todos", "todos_", "__todos", "t_todos", "todos__changes",
        "dueDate", "due_date", "DueDate", "due_Date", "duedate", "c_duedate_ac10f8c163",
    ]
)  # fmt: skip
names = identifiers | look_alikes | look_alikes.map(staged_column)
tables = st.lists(names, max_size=8, unique_by=folded)
"""Names of columns that a table may have."""


@pytest.mark.law("S5")
@given(names, names)
@example("Todos", staged_column("Todos"))
def test_staged_columns_have_equal_names_only_if_their_names_fold_together(
    one: str, other: str
) -> None:
    assert (staged_column(one) == staged_column(other)) == (folded(one) == folded(other))
    assert SAFE.fullmatch(staged_column(one))


@pytest.mark.law("S5")
@given(tables, tables, st.randoms(use_true_random=False))
@example(["dueDate"], ["due_date"], None)
@example(["due_date"], ["dueDate"], None)
@example(["dueDate", "due_date"], [], None)
def test_lake_columns_have_distinct_names_that_later_columns_do_not_change(
    first: list[str], later: list[str], random: Random | None
) -> None:
    taken = {folded(name): column for name, column in lake_columns(first, {}).items()}
    both = [*first, *(name for name in later if folded(name) not in taken)]
    if random:
        random.shuffle(both)
    columns = lake_columns(both, taken)

    assert len(set(columns.values())) == len({folded(name) for name in both})
    assert taken.items() <= {folded(name): column for name, column in columns.items()}.items()
    assert columns == lake_columns(sorted(both), taken), "whatever their order is"
    for column in columns.values():
        assert SAFE.fullmatch(column)
        assert not column.startswith("_")


@pytest.mark.law("S5")
@given(names)
def test_every_table_has_two_safe_lake_names_without_reserved_suffixes(
    name: str,
) -> None:
    assert len(lake_tables(name)) == 2
    for table in lake_tables(name):
        assert SAFE.fullmatch(table)
        assert not table.endswith(KEPT_SUFFIXES)


@pytest.mark.law("S5")
@given(names, names)
def test_second_lake_name_of_a_table_is_no_name_of_another_table(one: str, other: str) -> None:
    if folded(one) != folded(other):
        assert lake_tables(one)[1] not in lake_tables(other)


@pytest.mark.law("S5")
@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("dueDate", "due_date"), ("DueDate", "due_date"), ("due_date", "due_date"), ("id", "id"),
        ("userID", "user_id"), ("HTTPServer", "http_server"), ("SKU", "sku"), ("a1Of", "a1_of"),
    ],
)  # fmt: skip
def test_lake_names_are_split_into_words(written: str, words: str) -> None:
    assert in_words(written) == words
    assert lake_columns([written], {}) == {written: words}
    assert lake_tables(written)[0] == words


@pytest.mark.law("S5")
def test_digest_is_added_only_to_lake_column_names_that_collide() -> None:
    assert lake_columns(["dueDate", "n"], {}) == {"dueDate": "due_date", "n": "n"}
    assert lake_columns(["dueDate", "due_date"], {}) == {
        "due_date": "due_date",
        "dueDate": "c_duedate_ac10f8c163",
    }
    assert lake_columns(["due_date"], {"duedate": "due_date"})["due_date"].startswith("c_due_date_")


@pytest.mark.law("S5")
@given(texts.filter(bool), texts.filter(bool))
def test_each_gateway_has_its_own_lake_database(one: str, other: str) -> None:
    assert (lake_database("lake", one) == lake_database("lake", other)) == (one == other)
    assert SAFE.fullmatch(lake_database("lake", one))


@pytest.mark.law("S5")
@given(texts.filter(bool), texts.filter(bool))
@example("flow_g_acme_in_84f42e86f9", "acme/in")
@example("flow", "g/acme")
def test_databases_of_flows_differ_from_databases_of_gateways(gateway: str, flow: str) -> None:
    assert not is_flow_database("lake", lake_database("lake", gateway.replace("/", "-")))
    assert is_flow_database("lake", flow_database("lake", f"{gateway}/{flow}"))
    assert not is_flow_database("sea", flow_database("lake", f"{gateway}/{flow}"))


@pytest.mark.law("S5")
def test_lake_names_do_not_change_between_releases() -> None:
    assert lake_tables("Todos")[0] == lake_tables("TODOS")[0] == "todos"
    assert (
        lake_tables("todos__changes")
        == lake_tables("Todos__Changes")
        == ("t_todos__changes_62d197050b",) * 2
    )
    assert lake_tables("todos__Rows") == ("t_todos__rows_e0f530d971",) * 2
    assert lake_tables("todos__live") == ("t_todos__live_801fbffad2",) * 2
    assert staged_column("_id") == "c_id_b6f7460b47"
    assert staged_column("dueDate") == "duedate"
    assert lake_database("lake", "tenant-1") == "lake_g_tenant_1_0a96abb33b"


@pytest.mark.law("S5")
@pytest.mark.parametrize("name", ["sqlite_master", "SQLITE_x", "Sqlite_"])
def test_table_name_reserved_by_sqlite_is_refused(name: str) -> None:
    assert is_identifier(name)
    assert not is_table_name(name)
    makers: list[Callable[[], object]] = [
        lambda: checked_delta(Op.DELETE, name, "r", "a", 1, ()),
        lambda: TableSchema(name, (Column("x", "string"),)),
        lambda: checked_first([name]),
    ]
    for make in makers:
        with pytest.raises(ValidationFailed, match="sqlite_"):
            make()
    assert is_table_name("sqlite") is is_table_name("my_sqlite_x") is True
    checked_delta(Op.UPDATE, "t", "r", "a", 1, ((name, b"1"),))
