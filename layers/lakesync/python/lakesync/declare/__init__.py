"""What administrators declare, each kind once: a pydantic model.

A model is the reader, which names every fault at once, and the source of the OpenAPI schema. It
yields the frozen records of `lakesync.core`. What only a gateway's configuration can tell (whether
a table has a column) is checked by functions of `core`, also where no model is at hand.

A body with faults is read a second time, as far as it can be: what is malformed is replaced by
None. So the checks that need several fields are made of those that are sound, too.
The reasons: ``docs/adr/0040-what-is-declared-is-written-once.md``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic_core import core_schema

from lakesync.core.names import is_identifier, is_table_name
from lakesync.core.wording import plural
from lakesync.errors import Fault, InvalidInput, ValidationFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler, ValidatorFunctionWrapHandler

    Schema = dict[str, Any]

DOORS: Final = ("destinations", "existing_connectors", "flows", "schemas", "sync_rules")
"""What other folders may import, beside the names of this module."""
M = TypeVar("M", bound="BaseModel")
NOT_GIVEN: Final[Any] = None
"""The value of a field that was left out; pydantic's `model_fields_set` tells."""
_AS_FAR_AS_POSSIBLE: Final = object()
"""The context in which what is malformed becomes None."""
_FAULTS_SHOWN_MAX: Final = 5
"""Faults in an error's sentence; the error has all of them."""
_NAME_CHARACTERS_SHOWN_MAX: Final = 64
FORM: Final = "<form "
"""How the tags of alternative forms begin; they are no part of a path."""
_SENTENCES: Final = {
    "missing": "is missing",
    "extra_forbidden": "there is no such field",
    "model_type": "must be an object",
    "dict_type": "must be an object",
    "list_type": "must be a list",
    "string_type": "must be text",
    "string_unicode": "has half of a surrogate pair, which is no text",
    "bool_type": "must be true or false",
    "int_type": "must be a whole number",
    "greater_than_equal": "must be at least {ge}",
    "less_than_equal": "must be at most {le}",
    "too_short": "needs at least {min_length}",
    "too_long": "holds {actual_length}; at most {max_length} are taken",
    "value_error": "{error}",
}
"""What to do, by pydantic's type of a fault; others have pydantic's own sentence."""


class Declaration(BaseModel):
    """Something declared: in JSON its fields have names like ``primaryKey``."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, alias_generator=to_camel,
        hide_input_in_errors=True,
    )  # fmt: skip

    @model_validator(mode="before")
    @classmethod
    def _known_fields(cls, body: object, info: ValidationInfo) -> object:
        if info.context is not _AS_FAR_AS_POSSIBLE:
            return body
        given = body if isinstance(body, dict) else {}
        fields = cls.model_fields.items()
        wanted = {one.alias or name: one.is_required() for name, one in fields}
        return {name: given.get(name) for name in wanted if name in given or wanted[name]}

    @field_validator("*", mode="wrap")
    @classmethod
    def _or_none(
        cls, value: object, handler: ValidatorFunctionWrapHandler, info: ValidationInfo
    ) -> object:
        try:
            return handler(value)
        except ValidationError:
            if info.context is not _AS_FAR_AS_POSSIBLE:
                raise
            return None

    def sound(self) -> dict[str, Any]:
        """Return the fields that were given and could be read; lists as tuples."""
        return {
            name: tuple(one for one in value if one is not None) if type(value) is list else value
            for name, value in self
            if name in self.model_fields_set and value is not None
        }


class Several(ValueError):
    """Several faults of one value, with their paths below it."""

    def __init__(self, *faults: Fault) -> None:
        self.faults = faults


@dataclass(frozen=True)
class Form:
    """The form of a value: what it is read as, and how it is described."""

    read: Callable[[Any], object]
    """Returns the value, or raises `ValueError`."""
    schema: Schema

    def __get_pydantic_core_schema__(
        self, _source: object, _handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        return core_schema.with_info_plain_validator_function(self._read)

    def __get_pydantic_json_schema__(
        self, _core: core_schema.CoreSchema, _handler: GetJsonSchemaHandler
    ) -> Schema:
        return dict(self.schema)

    def _read(self, value: Any, info: ValidationInfo) -> object:
        try:
            return self.read(value)
        except ValueError:
            if info.context is not _AS_FAR_AS_POSSIBLE:
                raise
            return None


def text_form(fits: Callable[[str], object], sentence: str, **schema: Any) -> Form:
    """Return the form of text that fits; the sentence tells of what does not."""

    def read(value: object) -> str:
        if not isinstance(value, str) or not fits(value):
            raise ValueError(sentence)
        return value

    return Form(read, {"type": "string", **schema})


def one_of(choices: Collection[str], instead: str = "") -> Form:
    sentence = f"must be one of {', '.join(filter(None, choices))}{instead}"
    return text_form(choices.__contains__, sentence, enum=list(choices))


def whole_number(least: int, most: int, sentence: str = "", *, zero: bool = False) -> Form:
    """Return the form of a whole number within bounds, or 0 too."""
    sentence = sentence or f"must be a whole number from {least:,} to {most:,}"

    def read(value: object) -> int:
        if type(value) is int and (least <= value <= most or (zero and value == 0)):
            return value
        raise ValueError(sentence)

    bounds = {"type": "integer", "minimum": least, "maximum": most}
    return Form(read, {"anyOf": [{"const": 0}, bounds]} if zero else bounds)


_NAME_PATTERN: Final = "^[A-Za-z_][A-Za-z0-9_]{0,63}$"
_NAME_RULE: Final = "is named by a letter or _, then letters, digits or _, at most 64"
TABLE_NAME: Final = text_form(is_table_name, f"a table {_NAME_RULE}", pattern=_NAME_PATTERN)
COLUMN_NAME: Final = text_form(is_identifier, f"a column {_NAME_RULE}", pattern=_NAME_PATTERN)


# --- reading --------------------------------------------------------------------------------------


def read(model: type[M], body: object) -> tuple[M, list[Fault]]:
    """Return what a body declares, with None in place of what is malformed, and every fault."""
    try:
        return model.model_validate(body), []
    except ValidationError as error:
        faults = list(_faults(error))
    return model.model_validate(body, context=_AS_FAR_AS_POSSIBLE), faults


def checked(model: type[M], body: object, what: str, at: str = "") -> M:
    """Return what a body declares.

    Args:
        what: what people call it.
        at: the path of the body.

    Raises:
        ValidationFailed: it is malformed; names every fault, and repeats no value.
    """
    try:
        return model.model_validate(body)
    except ValidationError as error:
        faults = list(_faults(error, at))
    raise _refused(ValidationFailed, what, faults)


def apart_from(faults: Sequence[Fault], further: Iterable[Fault]) -> list[Fault]:
    """Return further faults, without those of what is at fault already."""
    named = {fault.path for fault in faults}
    return [fault for fault in further if fault.path not in named]


def refuse(kind: type[InvalidInput], what: str, faults: Sequence[Fault]) -> None:
    """Refuse a declaration that has faults.

    Raises:
        InvalidInput: it has; of the given kind.
    """
    if faults:
        raise _refused(kind, what, faults)


def _refused(kind: type[InvalidInput], what: str, faults: Sequence[Fault]) -> InvalidInput:
    listed = "; ".join(f"{path}: {message}" for path, message in faults[:_FAULTS_SHOWN_MAX])
    return kind(f"{plural(len(faults), 'fault')} in the {what}: {listed}", faults=faults)


def _faults(error: ValidationError, at: str = "") -> Iterator[Fault]:
    for one in error.errors(include_url=False, include_input=False):
        context = one.get("ctx", {})
        path = at + _path(one["loc"], at, is_unknown=one["type"] == "extra_forbidden")
        if isinstance(several := context.get("error"), Several):
            yield from (Fault(path + below, message) for below, message in several.faults)
        else:
            sentence = _SENTENCES.get(one["type"])
            yield Fault(path or "body", sentence.format(**context) if sentence else one["msg"])


def _path(parts: tuple[int | str, ...], at: str, *, is_unknown: bool) -> str:
    """Return a place as a path: ``buckets[0].filters[1].column``."""
    path = ""
    for place, part in enumerate(parts):
        is_own = is_unknown and place == len(parts) - 1
        if isinstance(part, int):
            path += f"[{part}]"
        elif is_own or not (part == "[key]" or part.startswith(FORM)):  # pydantic's marks
            path += f"{'.' if path or at else ''}{part[:_NAME_CHARACTERS_SHOWN_MAX]}"
    return path


def components(**models: type[BaseModel]) -> dict[str, Schema]:
    """Return models as components of the OpenAPI document, by their names there."""
    names = {model.__name__: name for name, model in models.items()}
    left_out = {"title", "default", "$defs"}

    def cleaned(schema: Any, definitions: Schema) -> Any:
        """Leave out titles and defaults; refer to components, and write out everything else."""
        if isinstance(schema, list):
            return [cleaned(one, definitions) for one in schema]
        if not isinstance(schema, dict):
            return schema
        if "$ref" in schema:
            name = schema["$ref"].rpartition("/")[2]
            if name in names:
                return {"$ref": f"#/components/schemas/{names[name]}"}
            return cleaned(definitions[name], definitions)
        return {
            name: cleaned(one, definitions)
            for name, one in schema.items()
            if name not in left_out or (isinstance(one, dict) and one and name != "$defs")
        }

    described = {name: model.model_json_schema() for name, model in models.items()}
    return {name: cleaned(schema, schema.get("$defs", {})) for name, schema in described.items()}
