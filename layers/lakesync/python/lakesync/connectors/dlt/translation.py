"""What dlt raises, as errors of ours: no row and no secret is part of one."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from dlt.common.configuration.exceptions import ConfigurationException
from dlt.common.exceptions import DictValidationException, MissingDependencyException
from dlt.extract.incremental.exceptions import (
    IncrementalCursorInvalidCoercion,
    IncrementalCursorPathHasValueNone,
    IncrementalCursorPathMissing,
    IncrementalPrimaryKeyMissing,
)
from requests import exceptions

from lakesync.connectors.http_answers import DEFAULT_WAIT_S, Answer, refused
from lakesync.errors import (
    AdapterFailed,
    AdapterRefused,
    AdapterTimedOut,
    AdapterUnreachable,
    LakeSyncError,
    ValidationFailed,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from requests import Response

    Translate = Callable[[Exception], LakeSyncError | None]


def translated(raised: BaseException, translate: Translate | None = None) -> LakeSyncError | None:
    """Return the error that was raised, or that caused it; None for what nobody expects.

    Args:
        raised: the exception.
        translate: reads those of a database's driver.
    """
    for error in _causes(raised):
        if isinstance(error, LakeSyncError):
            return error
        ours = _of_requests(error) or _of_dlt(error)
        driver = getattr(error, "orig", None)  # as SQLAlchemy wraps it
        if ours is None and translate is not None and isinstance(driver, Exception):
            ours = translate(driver)
        if ours is not None:
            return ours
    return None


def _causes(raised: BaseException) -> Iterator[BaseException]:
    """Yield an exception and what caused it, the cause first."""
    chain: list[BaseException] = []
    error: BaseException | None = raised
    while error is not None and error not in chain:
        chain.append(error)
        error = error.__cause__ or error.__context__
    yield from reversed(chain)


def _of_requests(error: BaseException) -> LakeSyncError | None:
    if isinstance(error, exceptions.JSONDecodeError):
        return AdapterFailed(
            "the source's answer was cut off or is not JSON", retry_after_s=DEFAULT_WAIT_S
        )
    if isinstance(error, exceptions.HTTPError) and error.response is not None:
        return _of_answer(error.response)
    if isinstance(error, exceptions.Timeout):
        return AdapterTimedOut("the source gave no answer in time", retry_after_s=DEFAULT_WAIT_S)
    if isinstance(error, exceptions.ConnectionError):
        return AdapterUnreachable("the source was not reached", retry_after_s=DEFAULT_WAIT_S)
    return None


def _of_answer(response: Response) -> LakeSyncError | None:
    headers = {name.lower(): value for name, value in response.headers.items()}
    answer = Answer(response.status_code, headers, response.content)
    return refused(answer, urlsplit(response.url or "").hostname or "the source")


def _of_dlt(error: BaseException) -> LakeSyncError | None:
    match error:
        case IncrementalCursorPathMissing() | IncrementalCursorPathHasValueNone():
            return AdapterRefused(
                f"a row of {error.pipe_name} has no {error.json_path}, by which incremental reads "
                "it: set on_cursor_value_missing, or name another cursor_path"
            )
        case IncrementalCursorInvalidCoercion():
            return AdapterRefused(
                "a row's cursor cannot be compared with the previous one, or with initial_value: "
                "they are of two types"
            )
        case IncrementalPrimaryKeyMissing():
            return AdapterRefused("a row lacks what primary_key names")
        case DictValidationException():
            return ValidationFailed(
                f"rest: {error.field or ''} at {error.path}: {error.msg}"[:300], field="rest"
            )
        case ConfigurationException() | MissingDependencyException():
            return ValidationFailed(f"{type(error).__name__}: {error}"[:300], field="configuration")
    return None
