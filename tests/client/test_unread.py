"""An edit that did not happen is heard, unless somebody looks at its result."""

from __future__ import annotations

import copy
import gc
import pickle
import warnings
from typing import TYPE_CHECKING, Any

import pytest

from lakesync.errors import ValidationFailed
from lakesync.result import Err, Ok, Result, UnreadErrWarning, heard

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakesync.client import Client

FAULT = ValidationFailed("the row id is empty; give one")


def test_the_warning_of_an_ignored_err_names_the_operation_the_code_and_the_message(
    client: Client,
) -> None:
    with pytest.warns(UnreadErrWarning) as caught:
        client.insert("todos", "", {"title": "x"})

    (warning,) = caught
    sentence = str(warning.message)
    assert sentence.startswith("INSERT of 'todos', '' did not happen")
    assert "VALIDATION_ERROR: an id must be 1 to 512 bytes" in sentence
    assert warning.filename == __file__


EDITS: list[Callable[[Client], Any]] = [
    lambda client: client.insert("t", ""),
    lambda client: client.update("t", "r", {}),
    lambda client: client.delete("no-name", "r"),
    lambda client: client.retry("0" * 64),
    lambda client: client.discard("0" * 64),
]


@pytest.mark.parametrize("edit", EDITS)
def test_every_failed_edit_with_an_ignored_result_warns(
    client: Client, edit: Callable[[Client], Any]
) -> None:
    with pytest.warns(UnreadErrWarning):
        edit(client)


def test_a_failed_edit_of_a_transaction_raises_at_its_end_and_does_not_warn(client: Client) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ValidationFailed), client.transaction() as tx:
            tx.insert("t", "")
        gc.collect()


def test_an_ignored_success_sync_or_query_does_not_warn(client: Client) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        client.insert("t", "r", {"c": 1})
        client.sync()
        client.query("nonsense")
        gc.collect()
    assert caught == []


def _matched(result: Result[Any, Exception]) -> bool:
    match result:
        case Ok():
            return True
        case Err():
            return False


LOOKS: list[Callable[[Result[Any, Exception]], object]] = [
    _matched,
    lambda result: isinstance(result, Err),
    lambda result: isinstance(result, Ok),
    lambda result: result.unwrap_or(None),
    lambda result: result == Ok(1),
    lambda result: Ok(1) == result,
    repr,
    hash,
    lambda result: result.map(str).unwrap_or(None),
    lambda result: isinstance(result, Err) and result.error,
]


@pytest.mark.parametrize("look", LOOKS)
def test_an_err_that_is_inspected_does_not_warn(
    look: Callable[[Result[Any, Exception]], object],
) -> None:
    look(heard(Err(FAULT), "an edit"))


DROPS: list[Callable[[Result[Any, Exception]], object]] = [
    lambda result: result.map(str),
    lambda result: result.and_then(Ok),
    lambda result: [result],
    bool,
    id,
]


@pytest.mark.parametrize("drop", DROPS)
def test_an_err_that_is_only_passed_on_warns(
    drop: Callable[[Result[Any, Exception]], object],
) -> None:
    with pytest.warns(UnreadErrWarning, match="an edit did not happen"):
        drop(heard(Err(FAULT), "an edit"))


def test_an_unread_err_equals_and_behaves_as_its_err() -> None:
    unread: Result[Any, ValidationFailed] = heard(Err(FAULT), "an edit")

    assert isinstance(unread, Err)
    assert unread == Err(FAULT)
    assert Err(FAULT) == unread
    assert hash(unread) == hash(Err(FAULT))
    assert repr(unread) == repr(Err(FAULT))
    assert unread.error is FAULT
    assert copy.copy(unread) == unread
    assert str(pickle.loads(pickle.dumps(unread)).error) == str(FAULT)  # noqa: S301 - our own
    with pytest.raises(ValidationFailed):
        unread.unwrap()
    with pytest.raises(AttributeError):
        unread.value  # type: ignore[attr-defined]  # noqa: B018
    match unread:
        case Err(error):
            assert error is FAULT


def test_an_ok_is_returned_unwrapped() -> None:
    success = Ok(1)
    assert heard(success, "an edit") is success
