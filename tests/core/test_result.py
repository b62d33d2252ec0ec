"""lakesync.result and lakesync.errors: values that are matched, or raised."""

from __future__ import annotations

import pickle

import pytest

from lakesync import Err, LakeSyncError, Ok, Result, Retry
from lakesync.errors import BY_CODE, Backpressure, NotFound, RateLimited, ValidationFailed

FAULT = ValidationFailed("the stamp is missing; send it", field="hlc")


def half(number: int) -> Result[int, ValidationFailed]:
    """Halve an even number."""
    return Err(FAULT) if number % 2 else Ok(number // 2)


def test_and_then_chains_values_and_keeps_the_first_error() -> None:
    assert Ok(8).and_then(half).and_then(half) == Ok(2)
    assert Ok(6).and_then(half).and_then(half).and_then(half) == Err(FAULT)


def test_map_changes_values_and_keeps_errors() -> None:
    assert half(8).map(str) == Ok("4")
    assert half(7).map(str) == Err(FAULT)


def test_unwrap_returns_the_value_or_raises_the_error() -> None:
    assert half(8).unwrap() == 4
    with pytest.raises(ValidationFailed) as raised:
        half(7).unwrap()

    assert raised.value is FAULT


def test_unwrap_or_returns_the_default_only_for_an_error() -> None:
    assert half(8).unwrap_or(0) == 4
    assert half(7).unwrap_or(0) == 0


def test_results_can_be_matched_by_kind_and_retry() -> None:
    match half(7):
        case Ok(_):
            pytest.fail("7 is odd")
        case Err(error) if error.retry is Retry.NEVER:
            assert error.field == "hlc"
        case Err(_):
            pytest.fail("a malformed request never succeeds unchanged")


@pytest.mark.parametrize("kind", BY_CODE.values())
def test_an_error_survives_pickling(kind: type[LakeSyncError]) -> None:
    error = pickle.loads(pickle.dumps(kind("what to do", field="deltas[3]")))  # noqa: S301 - ours

    assert type(error) is kind
    assert (error.message, error.field) == ("what to do", "deltas[3]")


def test_lone_surrogates_in_errors_are_escaped() -> None:
    error = NotFound("no \ud800 here; é 😀 are fine", field="a.\udfff")

    assert str(error) == "no \\ud800 here; é 😀 are fine"
    assert error.field == "a.\\udfff"


def test_retry_delay_is_given_only_for_errors_where_waiting_helps() -> None:
    assert RateLimited("slow down").retry_after_s == 1
    assert Backpressure("later").retry_after_s == 15
    assert FAULT.retry_after_s == 0
