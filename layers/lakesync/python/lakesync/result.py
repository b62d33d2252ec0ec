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

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeAlias, TypeVar

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
        """Give the changed value, still an `Ok`."""
        return Ok(change(self.value))

    def and_then(self, following: Callable[[T_co], Result[U, F]]) -> Result[U, F]:
        """Go on with the next operation, whose result is the whole's."""
        return following(self.value)

    def unwrap(self) -> T_co:
        """Give the value."""
        return self.value

    def unwrap_or(self, default: object) -> T_co:  # noqa: ARG002 - the twin of Err.unwrap_or
        """Give the value; the default is for an `Err`."""
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
        """Give the default."""
        return default


Result: TypeAlias = Ok[T_co] | Err[E_co]
