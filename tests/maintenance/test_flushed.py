"""What a build out of the lake is told of the buffer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakesync.checkpoint import Flushed, flushed_from_json, flushed_of, flushed_to_json, out_of_lake
from lakesync.errors import ValidationFailed
from lakesync.log.read import ReadBarrier
from lakesync.maintenance.horizons import begin_epoch
from tests.support.builders import TABLE, insert
from tests.support.checkpoints import Kept
from tests.support.gateways import GATEWAY

stamps = st.integers(0, (1 << 63) - 1)
names = st.sampled_from(["notes", "todos", "\u00e9"])


@pytest.mark.law("L13")
@given(
    st.builds(Flushed, names, st.sampled_from(["", "e1"]), stamps, stamps,
              st.dictionaries(names, stamps), st.dictionaries(names, stamps))
)  # fmt: skip
def test_flush_state_is_unchanged_after_encoding_and_decoding(flushed: Flushed) -> None:
    assert flushed_from_json(flushed_to_json(flushed)) == flushed


@pytest.mark.law("L13")
@pytest.mark.parametrize(
    ("marks", "since"),
    [
        ({"notes": 40, "todos": 70}, 90),  # all that was flushed is there
        ({"notes": 40, "todos": 80}, 90),  # and more was by now
        ({"notes": 40, "todos": 60}, 60),
        ({"notes": 30, "todos": 60}, 30),
        ({"todos": 70}, 0),
    ],
)
def test_log_continues_after_the_mark_of_the_table_that_lags_most(
    marks: dict[str, int], since: int
) -> None:
    assert Flushed("g", "", 0, 90, {}, {"notes": 40, "todos": 70}).since(marks) == since


def test_log_continues_after_the_watermark_if_there_is_no_merged_table() -> None:
    assert Flushed("g", "", 0, 90, {}, {}).since({}) == 90


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '"x"', '{"gateway": "g", "tables": []}',
             '{"gateway":"g","epoch":"","horizon":"x","watermark":"1","tombstoneHorizons":{},"tables":{}}']
)  # fmt: skip
def test_malformed_flush_state_is_refused(text: str) -> None:
    with pytest.raises(ValidationFailed):
        flushed_from_json(text)


@pytest.mark.law("L13")
def test_checkpoint_is_built_from_the_lake_only_if_the_gateway_is_large_and_changed() -> None:
    gateway = Kept()

    def is_flushed(rows_min: int) -> bool:
        log = ReadBarrier(gateway.buffer).raise_heads(GATEWAY)
        state = gateway.buffer.flush_state(GATEWAY)
        latest = gateway.checkpoints.latest(GATEWAY, log.epoch, log.trimmed)
        return out_of_lake(log, state, latest, rows_min)

    gateway.push(insert("r1"), insert("r2"))
    gateway.flushed()
    assert not is_flushed(
        1
    )  # the first one comes from the row states, and tells how many there are
    gateway.build()
    assert not is_flushed(1)  # nothing was flushed since
    gateway.push(insert("r3"))
    assert not is_flushed(1)
    gateway.flushed()
    assert not is_flushed(3)
    assert is_flushed(2)
    begin_epoch(gateway.buffer, GATEWAY, wall_clock=gateway.time.wall_clock)
    assert not is_flushed(1)


@pytest.mark.law("L13")
def test_checkpoint_job_is_given_the_flushed_merged_tables() -> None:
    gateway = Kept()
    gateway.push(insert("r1"))
    gateway.flushed()
    log = ReadBarrier(gateway.buffer).raise_heads(GATEWAY)
    state = gateway.buffer.flush_state(GATEWAY)

    flushed = flushed_of(log, state, gateway.buffer.flushed_tables(GATEWAY))

    assert flushed.tables == {TABLE: state.watermark}
