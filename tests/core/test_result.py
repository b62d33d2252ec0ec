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


def test_a_value_goes_on_and_a_failure_stays() -> None:
    assert Ok(8).and_then(half).and_then(half) == Ok(2)
    assert Ok(6).and_then(half).and_then(half).and_then(half) == Err(FAULT)


def test_only_a_value_is_mapped() -> None:
    assert half(8).map(str) == Ok("4")
    assert half(7).map(str) == Err(FAULT)


def test_a_value_is_unwrapped_and_an_error_is_raised() -> None:
    assert half(8).unwrap() == 4
    with pytest.raises(ValidationFailed) as raised:
        half(7).unwrap()

    assert raised.value is FAULT


def test_the_default_stands_in_for_a_failure_only() -> None:
    assert half(8).unwrap_or(0) == 4
    assert half(7).unwrap_or(0) == 0


def test_results_are_made_for_match() -> None:
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


def test_halves_of_surrogate_pairs_are_escaped_so_that_an_answer_can_carry_them() -> None:
    error = NotFound("no \ud800 here; é 😀 are fine", field="a.\udfff")

    assert str(error) == "no \\ud800 here; é 😀 are fine"
    assert error.field == "a.\\udfff"


def test_waiting_is_advised_only_where_it_helps() -> None:
    assert RateLimited("slow down").retry_after_s == 1
    assert Backpressure("later").retry_after_s == 15
    assert FAULT.retry_after_s == 0
