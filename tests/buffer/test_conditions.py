"""The conditions of a commit, as the buffer in memory refuses it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lakesync.buffer.memory_buffer import MemoryBuffer
from lakesync.ports import RowPut, StaleRead
from tests.support.commits import Writer


@pytest.mark.parametrize(("rows", "said"), [(1, "1 row and 0 marks"), (2, "2 rows and 0 marks")])
def test_refused_commit_reports_how_many_rows_and_marks_are_stale(rows: int, said: str) -> None:
    buffer = MemoryBuffer()
    commit = Writer(buffer, "g").prepare()
    stale = {("todos", f"r{number}"): RowPut(b"state", 7) for number in range(rows)}

    with pytest.raises(StaleRead, match=said):
        buffer.commit(replace(commit, rows=stale))
