"""lakesync.core.config: what the log keeps beside each delta, for rules that come later."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakesync.core.config import LoggedColumns, logged_from_json, logged_to_json
from lakesync.core.rules import RULE_COLUMNS_MAX, Bucket, Filter, SyncRules

tables = st.sets(st.sampled_from(["todos", "lists"]), max_size=2).map(frozenset)
columns = st.integers(0, RULE_COLUMNS_MAX * 2).map(lambda number: f"c{number}")
filters = st.lists(columns.map(lambda name: Filter(name, "eq", 1)), max_size=5).map(tuple)
buckets = st.builds(Bucket, st.just("some"), tables, filters)
rules = st.lists(buckets, max_size=3).map(lambda each: SyncRules(1, tuple(each)))


@pytest.mark.law("V7")
@given(st.lists(rules, max_size=8))
def test_columns_that_any_filter_needs_are_logged_or_the_generation_increases(
    history: list[SyncRules],
) -> None:
    logged = LoggedColumns()
    for declared in history:
        before, logged = logged, logged.with_rules(declared)
        for table in ("todos", "lists", "others"):
            assert declared.columns(table) <= logged.of(table)
            assert len(logged.of(table)) <= RULE_COLUMNS_MAX
            assert before.of(table) <= logged.of(table) or logged.generation > before.generation
        assert logged_from_json(logged_to_json(logged)) == logged


def test_without_rules_no_columns_are_logged() -> None:
    assert not LoggedColumns().with_rules(SyncRules())
