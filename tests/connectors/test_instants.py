"""Instants of outside systems: whatever zone they have, one text, and the microsecond exactly."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakesync.connectors.pages import instant, microseconds, utc_text

_moments = st.datetimes(datetime(2, 1, 1), datetime(9998, 1, 1))  # noqa: DTZ001 - a zone is added
_zones = st.integers(-1_439, 1_439).map(lambda minutes: timezone(timedelta(minutes=minutes)))


@given(_moments, _zones)
def test_utc_text_keeps_the_instant_in_any_zone(moment: datetime, zone: timezone) -> None:
    there = moment.replace(tzinfo=UTC).astimezone(zone)
    text = utc_text(there)
    assert text == moment.isoformat() + "Z"
    assert instant(text) == there
    assert utc_text(moment) == moment.isoformat()


@given(_moments, _zones)
def test_microseconds_are_exact(moment: datetime, zone: timezone) -> None:
    there = moment.replace(tzinfo=UTC).astimezone(zone)
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    assert epoch + timedelta(microseconds=microseconds(there)) == there
    assert microseconds(moment) == microseconds(there)


def test_an_instant_without_a_zone_is_in_utc() -> None:
    assert utc_text(instant("2026-03-29T02:30:00.5"), "milliseconds") == "2026-03-29T02:30:00.500Z"
    with pytest.raises(ValueError, match="no day"):
        instant("no day")
