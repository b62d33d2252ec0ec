"""The rows of an answer in the form the app wants: dictionaries, tuples, or objects of its own.

Cells contain what SQLite stores, and are read by the kinds of their columns
(`lakesync.client.storage.kinds`). An object's field of a certain type (``str``, ``date``,
``Decimal``, ``bytes``, ``list`` …) gets that type, whatever its column is.
"""

from __future__ import annotations

import dataclasses
import json
import types
from datetime import date, datetime
from decimal import Decimal
from functools import lru_cache
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar, Union, get_args, get_origin

from lakesync.client.storage.cells import reader, unmarked
from lakesync.core.column_types import bytes_of
from lakesync.errors import ValidationFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from lakesync.client.storage.kinds import Kinds

T = TypeVar("T")
Shape: TypeAlias = "Callable[[list[str], list[tuple[object, ...]], Kinds], list[Any]]"
"""Makes rows of the names of an answer, its rows, and the kinds of its columns."""

_CLASSES_REMEMBERED: Final = 256
_UNMARKED: Final = "unmarked"
"""The kind of a column whose cells are only brought to their plain form."""


def _by_text(made: Callable[[str], Any]) -> Callable[[Any], Any]:
    return lambda value: made(value) if isinstance(value, str) else value


_BYTES: Final = _by_text(bytes_of)
_JSON: Final = _by_text(json.loads)
_CONVERTED: Final[dict[Any, Callable[[Any], Any] | None]] = {
    str: None,
    int: None,
    bool: lambda value: bool(value) if value in (0, 1) else value,
    float: lambda value: float(value) if isinstance(value, int) else value,
    Decimal: lambda value: Decimal(str(value)),
    datetime: datetime.fromisoformat,
    date: lambda value: date.fromisoformat(value[:10]),
    bytes: _BYTES,
    list: _JSON,
    dict: _JSON,
}
"""What a field of a type makes of what SQLite stores, None for nothing. A field of another type
takes what the column is read as."""
_CONVERTED_FOR_PYDANTIC: Final[dict[Any, Callable[[Any], Any] | None]] = {
    **dict.fromkeys((str, int)),
    **dict.fromkeys((list, dict, tuple, set), _JSON),
    bytes: _BYTES,
}
"""The same for a pydantic model, which reads the rest from either."""


def shape(as_: Any) -> Shape:
    """Return the function that makes rows of the type ``as_``.

    Raises:
        ValidationFailed: it is neither ``dict``, ``tuple``, a dataclass nor a pydantic model.
    """
    if as_ is dict:
        return _dicts
    if as_ is tuple:
        return _tuples
    if isinstance(as_, type) and dataclasses.is_dataclass(as_):
        return _dataclasses(as_)
    if isinstance(as_, type) and callable(getattr(as_, "model_validate", None)):
        return _pydantic_models(as_)
    raise ValidationFailed(
        f"as_ is dict, tuple, a dataclass or a pydantic model, not {as_!r}", field="as_"
    )


def _dicts(
    names: list[str], answer: list[tuple[object, ...]], kinds: Kinds
) -> list[dict[str, Any]]:
    distinct = _distinct(names)
    # As dict(zip(...)) for each row, a quarter faster.
    rows: list[dict[str, Any]] = list(map(dict, map(zip, repeat(distinct), answer)))
    for name, shown in zip(names, distinct, strict=True):
        if name in kinds:
            kind = kinds[name]
            read = unmarked if kind == _UNMARKED else reader(kind)
            for row in rows:
                row[shown] = read(row[shown])
    return rows


def _tuples(
    names: list[str], answer: list[tuple[object, ...]], kinds: Kinds
) -> list[tuple[object, ...]]:
    if not kinds:
        return answer
    return [tuple(row.values()) for row in _dicts(names, answer, kinds)]


@lru_cache(_CLASSES_REMEMBERED)
def _dataclasses(cls: Any) -> Shape:
    """Return a maker of objects of a dataclass; it leaves out columns without a field."""
    import typing  # noqa: PLC0415 - an app that takes dictionaries does not resolve types

    try:
        hints = typing.get_type_hints(cls)
    except Exception as exc:
        raise ValidationFailed(f"the types of {cls.__name__} are unknown: {exc}") from exc
    made = [field for field in dataclasses.fields(cls) if field.init]
    convert = _of_fields({field.name: hints[field.name] for field in made}, _CONVERTED)
    missing = dataclasses.MISSING
    fields = [field.name for field in made]
    needed = {field.name for field in made if field.default is missing is field.default_factory}

    def rows(names: list[str], answer: list[tuple[object, ...]], kinds: Kinds) -> list[Any]:
        if lacking := sorted(needed - set(names)):
            raise ValidationFailed(
                f"{cls.__name__} needs {', '.join(lacking)}, which the query does not give",
                field="as_",
            )
        return [
            _made(lambda row=row: cls(**_converted(row, convert, fields)), cls)  # type: ignore[misc]
            for row in _dicts(names, answer, _left_to(kinds, convert))
        ]

    return rows


@lru_cache(_CLASSES_REMEMBERED)
def _pydantic_models(cls: Any) -> Shape:
    """Return what makes objects of a pydantic model, which checks what it is given."""
    hints: dict[str, Any] = {}
    for name, field in getattr(cls, "model_fields", {}).items():
        # Metadata such as that of Base64Bytes and Json says that the field reads text itself.
        reads_text = any(
            hasattr(part, "encoder") or part.__class__.__name__ == "Json" for part in field.metadata
        )
        for key in {name, field.alias, field.validation_alias}:
            if isinstance(key, str):
                hints[key] = str if reads_text else field.annotation
    convert = _of_fields(hints, _CONVERTED_FOR_PYDANTIC)
    return lambda names, answer, kinds: [
        _made(lambda row=row: cls.model_validate(_converted(row, convert, row)), cls)  # type: ignore[misc]
        for row in _dicts(names, answer, _left_to(kinds, convert))
    ]


def _of_fields(
    hints: Mapping[str, Any], converted: Mapping[Any, Callable[[Any], Any] | None]
) -> dict[str, Callable[[Any], Any] | None]:
    """Return the changes of those fields whose type says what they are given."""
    plain = {name: _plain(hint) for name, hint in hints.items()}
    return {name: converted[hint] for name, hint in plain.items() if _is_known(hint, converted)}


def _is_known(hint: Any, converted: Mapping[Any, object]) -> bool:
    return isinstance(hint, type) and hint in converted


def _left_to(kinds: Kinds, names: Collection[str]) -> Kinds:
    """Return the kinds of an answer of which some columns' cells are left to fields to convert."""
    return {name: _UNMARKED if name in names else kind for name, kind in kinds.items()}


def _converted(
    row: dict[str, Any], convert: Mapping[str, Callable[[Any], Any] | None], fields: Iterable[str]
) -> dict[str, Any]:
    """Return the values of an object's fields; null is null."""
    return {
        name: value if value is None or change is None else change(value)
        for name in fields
        if name in row
        for value, change in ((row[name], convert.get(name)),)
    }


def _plain(hint: Any) -> Any:
    """Return the type that a hint names, without ``| None`` and what it is made of."""
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
    """Return each column a name of its own: the second ``a`` is ``a:1``."""
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
