"""The columns of a class that an app's rows are: a dataclass's, or a pydantic model's."""

from __future__ import annotations

import dataclasses
import types
import typing
from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Union, get_args, get_origin

from lakesync.client.storage.app_table import ROW_ID
from lakesync.errors import ValidationFailed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_TYPES: Final[Mapping[Any, str]] = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    datetime: "timestamp",
    date: "date",
    bytes: "bytes",
    **dict.fromkeys((Any, object, list, dict), "json"),
}
_HOW: Final = 'say which by Annotated[…, "string"], with the name of a column type'
_DIGITS: Final = 'say how many digits it has: Annotated[Decimal, "decimal(9,2)"]'


def column_types(cls: type[Any]) -> dict[str, str]:
    """Return the types of the columns that a class's fields are, by their hints.

    A text in ``Annotated`` names a column's type itself; a ``Decimal`` needs one, or pydantic's
    ``max_digits`` and ``decimal_places``. ``_row_id`` is no column.

    Raises:
        ValidationFailed: it is no such class, or a field's type is not a column's.
    """
    try:
        hints = typing.get_type_hints(cls, include_extras=True)
    except Exception as exc:
        raise _refused(cls, f"its types are unknown: {exc}") from exc
    columns = {}
    for name, column, metadata in _fields(cls):
        if column == ROW_ID:
            continue
        kind, sentence = _type_of(hints[name], metadata)
        if not kind:
            raise _refused(cls, f"the field {name} is of no column's type: {sentence}")
        columns[column] = kind
    return columns


def _fields(cls: type[Any]) -> Iterable[tuple[str, str, Iterable[object]]]:
    """Return each field's name, its column's name, and its other declarations."""
    if dataclasses.is_dataclass(cls):
        return [(field.name, field.name, ()) for field in dataclasses.fields(cls) if field.init]
    if hasattr(cls, "model_validate") and hasattr(cls, "model_fields"):
        return [
            (name, str(field.validation_alias or field.alias or name), field.metadata)
            for name, field in cls.model_fields.items()
        ]
    raise _refused(cls, "it is neither")


def _type_of(hint: Any, metadata: Iterable[object] = ()) -> tuple[str, str]:
    """Return the column type of a hint; where it is none, nothing, and what to do."""
    if get_origin(hint) in (Union, types.UnionType):
        others = [part for part in get_args(hint) if part is not type(None)]
        return _type_of(others[0], metadata) if len(others) == 1 else ("", _HOW)
    if get_origin(hint) is Annotated:
        said = [*hint.__metadata__, *metadata]
        named = [part for part in said if isinstance(part, str)]
        return (named[0], "") if named else _type_of(get_args(hint)[0], said)
    if get_origin(hint) is Literal:
        return ("string", "") if all(isinstance(one, str) for one in get_args(hint)) else ("", _HOW)
    plain = get_origin(hint) or hint
    if plain is Decimal:
        return _decimal(metadata)
    is_known = isinstance(plain, type) or plain is Any
    return (_TYPES.get(plain, "") if is_known else "", _HOW)


def _decimal(metadata: Iterable[object]) -> tuple[str, str]:
    for part in metadata:
        for said in (part, *getattr(part, "metadata", ())):  # pydantic's Field has its own
            digits, places = (
                getattr(said, name, None) for name in ("max_digits", "decimal_places")
            )
            if isinstance(digits, int) and isinstance(places, int):
                return f"decimal({digits},{places})", ""
    return "", _DIGITS


def _refused(cls: type[Any], sentence: str) -> ValidationFailed:
    return ValidationFailed(
        f"a table is declared by names and types, by a dataclass or by a pydantic model; of "
        f"{cls.__name__}, {sentence}",
        field="columns",
    )
