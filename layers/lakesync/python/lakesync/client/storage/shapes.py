"""The rows of an answer as the app wants them: dictionaries, tuples, or objects of its own.

Cells hold what SQLite stores. Booleans are read by the names of columns that hold nothing else; an
object's field of a certain type (``date``, ``Decimal``, ``bytes``, ``list`` …) gets that.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import types
from datetime import date, datetime
from decimal import Decimal
from functools import lru_cache
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar, Union, get_args, get_origin

from lakesync.errors import ValidationFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

T = TypeVar("T")
Shape: TypeAlias = "Callable[[list[str], list[tuple[object, ...]], Collection[str]], list[Any]]"
"""Makes rows of the names of an answer, its rows, and the names of columns of booleans."""

_CLASSES_REMEMBERED: Final = 256
_CONVERTED: Final[dict[Any, Callable[[Any], Any]]] = {
    bool: lambda value: bool(value) if value in (0, 1) else value,
    float: lambda value: float(value) if isinstance(value, int) else value,
    Decimal: lambda value: Decimal(str(value)),
    datetime: datetime.fromisoformat,
    date: lambda value: date.fromisoformat(value[:10]),
    bytes: base64.b64decode,
    list: lambda value: json.loads(value) if isinstance(value, str) else value,
    dict: lambda value: json.loads(value) if isinstance(value, str) else value,
}
"""What a field of a type makes of what SQLite stores; of another type it takes that as it is."""


def shape(as_: Any) -> Shape:
    """Give what makes rows ``as_`` they are wanted.

    Raises:
        ValidationFailed: it is neither ``dict`` nor ``tuple``, a dataclass nor a pydantic model.
    """
    if as_ is dict:
        return _dicts
    if as_ is tuple:
        return _tuples
    if isinstance(as_, type) and dataclasses.is_dataclass(as_):
        return _dataclasses(as_)
    validated = getattr(as_, "model_validate", None)
    if isinstance(as_, type) and callable(validated):
        return lambda names, answer, booleans: [
            _made(lambda row=row: validated(row), as_)  # type: ignore[misc]
            for row in _dicts(names, answer, booleans)
        ]
    raise ValidationFailed(
        f"as_ is dict, tuple, a dataclass or a pydantic model, not {as_!r}", field="as_"
    )


def _dicts(
    names: list[str], answer: list[tuple[object, ...]], booleans: Collection[str]
) -> list[dict[str, Any]]:
    distinct = _distinct(names)
    # As dict(zip(...)) for each row, a quarter faster.
    rows: list[dict[str, Any]] = list(map(dict, map(zip, repeat(distinct), answer)))
    for name, shown in zip(names, distinct, strict=True):
        for row in rows if name.lower() in booleans else ():
            value = row[shown]
            if value.__class__ is int and 0 <= value <= 1:
                row[shown] = value == 1
    return rows


def _tuples(
    names: list[str], answer: list[tuple[object, ...]], booleans: Collection[str]
) -> list[tuple[object, ...]]:
    if not any(name.lower() in booleans for name in names):
        return answer
    return [tuple(row.values()) for row in _dicts(names, answer, booleans)]


@lru_cache(_CLASSES_REMEMBERED)
def _dataclasses(cls: Any) -> Shape:
    """Give what makes objects of a dataclass; columns that it has no field for are left out."""
    import typing  # noqa: PLC0415 - an app that takes dictionaries does not resolve types

    try:
        hints = typing.get_type_hints(cls)
    except Exception as exc:
        raise ValidationFailed(f"the types of {cls.__name__} are unknown: {exc}") from exc
    made = [field for field in dataclasses.fields(cls) if field.init]
    convert = {field.name: _CONVERTED.get(_plain(hints[field.name])) for field in made}
    missing = dataclasses.MISSING
    needed = {field.name for field in made if field.default is missing is field.default_factory}

    def rows(
        names: list[str], answer: list[tuple[object, ...]], booleans: Collection[str]
    ) -> list[Any]:
        if lacking := sorted(needed - set(names)):
            raise ValidationFailed(
                f"{cls.__name__} needs {', '.join(lacking)}, which the query does not give",
                field="as_",
            )
        return [
            _made(lambda row=row: _object(cls, row, convert), cls)  # type: ignore[misc]
            for row in _dicts(names, answer, booleans)
        ]

    return rows


def _object(cls: Any, row: dict[str, Any], convert: dict[str, Any]) -> Any:
    return cls(
        **{
            name: value if value is None or change is None else change(value)
            for name, change in convert.items()
            if name in row
            for value in (row[name],)
        }
    )


def _plain(hint: Any) -> Any:
    """Give the type that a hint names, without ``| None`` and what it is made of."""
    if get_origin(hint) in (Union, types.UnionType):
        others = [part for part in get_args(hint) if part is not type(None)]
        return _plain(others[0]) if len(others) == 1 else None
    return get_origin(hint) or hint


def _made(make: Callable[[], T], cls: Any) -> T:
    try:
        return make()
    except Exception as exc:
        raise ValidationFailed(
            f"a row is no {cls.__name__}: {exc}; correct the row, or what the class asks",
            field="as_",
        ) from exc


def _distinct(names: list[str]) -> list[str]:
    """Give each column a name of its own: the second ``a`` is ``a:1``."""
    if len(set(names)) == len(names):
        return names
    distinct: list[str] = []
    for name in names:
        number, candidate = 0, name
        while candidate in distinct or (number and candidate in names):
            number += 1
            candidate = f"{name}:{number}"
        distinct.append(candidate)
    return distinct
