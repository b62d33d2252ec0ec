"""lakesync.wire.log_entries: entries that lie in one item come back as they were."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakesync.ports import LogEntry
from lakesync.wire.log_entries import decode_chunk, encode_chunk

stamps = st.lists(st.integers(1, 1 << 62), min_size=2, max_size=9, unique=True).map(sorted)
runs = st.binary(max_size=60)
names = st.frozensets(st.sampled_from(["todos", "notes", "été"]))


@pytest.mark.law("B8")
@given(stamps, st.integers(0, 1 << 40), st.data())
def test_chain_of_log_entries_round_trips(
    chain: list[int], before_bytes: int, data: st.DataObject
) -> None:
    parts = [data.draw(st.tuples(runs, st.integers(0, 9), names, runs)) for _ in chain[1:]]
    totals = list(accumulate((len(part[0]) for part in parts), initial=before_bytes))[1:]
    entries = tuple(
        LogEntry(stamp, records, count, tables, total, previous, rule_rows)
        for stamp, previous, total, (records, count, tables, rule_rows) in zip(
            chain[1:], chain, totals, parts, strict=False
        )
    )

    assert decode_chunk(encode_chunk(entries)) == entries
