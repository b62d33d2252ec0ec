"""`Result`: what a public operation returns for what can happen in operation.

``Ok(value) | Err(error)``, small frozen classes made for ``match``::

    match client.push():
        case Ok(receipt):
            ...
        case Err(error) if error.retry is Retry.LATER:
            ...

Those who prefer exceptions call ``unwrap()``: the error of an `Err` is an exception too, and is
raised. Bugs are not results: they raise wherever they are.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeAlias, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Callable

T_co = TypeVar("T_co", covariant=True)
U = TypeVar("U")
E_co = TypeVar("E_co", bound=Exception, covariant=True)
F = TypeVar("F", bound=Exception)


@dataclass(frozen=True, slots=True)
class Ok(Generic[T_co]):
    """The operation happened; ``value`` is what it gave."""

    value: T_co

    def map(self, change: Callable[[T_co], U]) -> Ok[U]:
        """Return the changed value, still an `Ok`."""
        return Ok(change(self.value))

    def and_then(self, following: Callable[[T_co], Result[U, F]]) -> Result[U, F]:
        """Go on with the next operation, whose result is the whole's."""
        return following(self.value)

    def unwrap(self) -> T_co:
        """Return the value."""
        return self.value

    def unwrap_or(self, default: object) -> T_co:  # noqa: ARG002 - the twin of Err.unwrap_or
        """Return the value; the default is for an `Err`."""
        return self.value


@dataclass(frozen=True, slots=True)
class Err(Generic[E_co]):
    """The operation did not happen; ``error`` says why, what to do, and when to try again."""

    error: E_co

    def map(self, change: Callable[[Any], object]) -> Err[E_co]:  # noqa: ARG002 - twin of Ok.map
        """Stay as it is: there is no value to change."""
        return self

    def and_then(self, following: Callable[[Any], object]) -> Err[E_co]:  # noqa: ARG002 - twin
        """Stay as it is: nothing follows a failure."""
        return self

    def unwrap(self) -> NoReturn:
        """Raise the error."""
        raise self.error

    def unwrap_or(self, default: U) -> U:
        """Return the default."""
        return default


Result: TypeAlias = Ok[T_co] | Err[E_co]


class UnreadErrWarning(RuntimeWarning):
    """A result that says that something did not happen was dropped, and nobody had looked at it."""


class _Unread:
    """An `Err` that is heard if it is dropped unread, as a coroutine is that nobody awaits.

    It stands in for its `Err` and says that it is one. Python asks for its class in ``isinstance``
    and in each ``case`` of a ``match``, so those are seen, and count as looking; so do ``error``,
    `unwrap`, `unwrap_or`, comparing and printing. `map` and `and_then` do not: they hand the
    failure on, and whoever drops what they give has not looked at it either.
    """

    __slots__ = ("_err", "_operation")

    def __init__(self, err: Err[Exception], operation: str) -> None:
        self._err = err
        self._operation = operation

    def _read(self) -> Err[Exception]:
        self._operation = ""
        return self._err

    @property
    def __class__(self) -> Any:
        return type(self._read())

    @__class__.setter  # only for typing's sake: an object's class may be set
    def __class__(self, _: object) -> None: ...

    def __getattr__(self, name: str) -> Any:
        return getattr(self._read(), name)

    def map(self, _: object) -> _Unread:
        return self

    def and_then(self, _: object) -> _Unread:
        return self

    def __eq__(self, other: object) -> bool:
        return self._read() == other

    def __hash__(self) -> int:
        return hash(self._read())

    def __repr__(self) -> str:
        return repr(self._read())

    def __reduce__(self) -> tuple[Any, ...]:
        return Err, (self._read().error,)

    def __del__(self) -> None:
        if self._operation:
            error = self._err.error
            code = getattr(error, "code", type(error).__name__)
            warnings.warn(
                f"{self._operation} did not happen, and its result was dropped unread: {code}: "
                f"{error}",
                UnreadErrWarning,
                stacklevel=2,
                source=self,
            )


def heard(result: Result[T_co, E_co], operation: str) -> Result[T_co, E_co]:
    """Return a result that warns if it is an `Err` and is dropped unread.

    Args:
        result: the result.
        operation: what did not happen, for the warning.
    """
    if isinstance(result, Ok):
        return result
    return cast("Err[E_co]", _Unread(result, operation))
