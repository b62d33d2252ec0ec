"""Words that say in which order a snapshot reads its tables."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakesync.core.messages import tables_read


@pytest.mark.parametrize(
    "words", ["", "all", "2|all", "1|all|x|y", "1|all:no table!|x|y|todos", "v9:opaque"]
)
def test_unreadable_resume_token_reports_no_table_as_read(words: str) -> None:
    assert tables_read(words, ("todos",)) == frozenset()


@given(st.text())
def test_tables_read_accepts_any_text(words: str) -> None:
    assert tables_read(words, ("todos",)) <= {"todos"} | set(words.split("|")) | set(
        words.partition(":")[2].split("|")[0].split(",")
    )
