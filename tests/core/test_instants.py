"""Instants as the HTTP API shows them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from lakesync.core.wording import utc_text

_LAST_MS = 253_402_300_799_999


@given(st.integers(0, _LAST_MS))
def test_utc_text_round_trips_to_the_millisecond(ms: int) -> None:
    text = utc_text(ms, "milliseconds")

    since_1970 = datetime.fromisoformat(text) - datetime(1970, 1, 1, tzinfo=UTC)
    assert text.endswith("Z")
    assert since_1970 == timedelta(milliseconds=ms)


@given(st.integers(0, _LAST_MS))
def test_utc_text_truncates_seconds_and_never_rounds_up(ms: int) -> None:
    assert utc_text(ms) == utc_text(ms - ms % 1000)
    assert utc_text(ms, "milliseconds").startswith(utc_text(ms)[:-1])


@given(st.integers(_LAST_MS, 10**30))
def test_time_beyond_the_calendar_is_shown_as_the_last_one(ms: int) -> None:
    assert utc_text(ms, "milliseconds") == "9999-12-31T23:59:59.999Z"
