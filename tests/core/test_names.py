"""lakesync.core.names: names that are safe in every catalogue and never meet."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lakesync.core.names import CHANGES_SUFFIX, folded, lake_column, lake_database, lake_table
from tests.support.strategies import identifiers, texts

SAFE = re.compile(r"[a-z][a-z0-9_]*")

look_alikes = st.sampled_from(
    ["Todos", "todos", "TODOS", "_todos", "todos_", "__todos", "t_todos", "todos__changes"]
)
names = identifiers | look_alikes | look_alikes.map(lake_table) | look_alikes.map(lake_column)


@pytest.mark.law("S5")
@given(names, names)
@example("Todos", lake_table("Todos"))
@example("Todos", lake_column("Todos"))
def test_two_names_never_meet(one: str, other: str) -> None:
    is_one = folded(one) == folded(other)
    assert (lake_table(one) == lake_table(other)) == is_one
    assert (lake_column(one) == lake_column(other)) == is_one


@pytest.mark.law("S5")
@given(names)
def test_every_name_is_lower_case_and_safe(name: str) -> None:
    assert SAFE.fullmatch(lake_table(name))
    assert SAFE.fullmatch(lake_column(name))


@pytest.mark.law("S5")
@given(names | st.builds("{}__changes".format, identifiers))
def test_no_table_is_taken_for_the_changes_of_another(name: str) -> None:
    assert not lake_table(name).endswith(CHANGES_SUFFIX)


@pytest.mark.law("S5")
@given(st.from_regex(r"[a-z][a-z0-9_]{0,20}[a-z]", fullmatch=True))
def test_a_name_is_its_folded_form_but_where_it_is_reserved(name: str) -> None:
    for spelled in (name, name.upper(), name.title()):
        assert lake_column(spelled) == name
        assert lake_table(spelled) == name or name.endswith(CHANGES_SUFFIX)


@pytest.mark.law("S5")
@given(texts.filter(bool), texts.filter(bool))
def test_gateways_have_databases_of_their_own(one: str, other: str) -> None:
    assert (lake_database("lake", one) == lake_database("lake", other)) == (one == other)
    assert SAFE.fullmatch(lake_database("lake", one))


@pytest.mark.law("S5")
def test_names_in_the_lake_never_change_from_one_release_to_the_next() -> None:
    assert lake_table("Todos") == lake_table("TODOS") == "todos"
    assert (
        lake_table("todos__changes")
        == lake_table("Todos__Changes")
        == "t_todos__changes_62d197050b"
    )
    assert lake_column("_id") == "c_id_b6f7460b47"
    assert lake_database("lake", "tenant-1") == "lake_g_tenant_1_0a96abb33b"
