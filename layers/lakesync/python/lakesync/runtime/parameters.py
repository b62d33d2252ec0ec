"""Parameters in the address of a request: their forms, and how a malformed one is refused.

FastAPI checks them before any route's own code, and pydantic words the faults; here they become
our errors, for all routes alike. A new ``pattern`` of a parameter needs its words in `_FORMS`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from lakesync.errors import ValidationFailed
from lakesync.runtime.auth import GATEWAY_ID

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

GATEWAY_FORM: Final = f"^{GATEWAY_ID}$"
NAME_FORM: Final = "^[A-Za-z0-9_-]{1,64}$"
TABLE_FORM: Final = "^[A-Za-z_][A-Za-z0-9_]{0,63}$"
STAMP_FORM: Final = "^[0-9]{1,19}$"
CHECKPOINT_FORM: Final = "^[0-9a-f]{16}-[0-9a-f]{16}$"
_FORMS: Final[Mapping[str, str]] = {
    GATEWAY_FORM: "an id of letters, digits, _ and -, at most 64",
    NAME_FORM: "a name of letters, digits, _ and -, at most 64",
    TABLE_FORM: "a table's name: letters, digits and _, at most 64, no digit first",
    STAMP_FORM: "a stamp: a decimal string",
    CHECKPOINT_FORM: "the `X-Checkpoint-Id` of an answer",
}
_MUST_BE: Final[Mapping[str, str]] = {
    "bool_parsing": "true or false",
    "greater_than_equal": "at least {ge:,}",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "int_parsing_size": "a smaller number",
    "less_than": "less than {lt:,}",
    "less_than_equal": "at most {le:,}",
    "string_too_long": "at most {max_length:,} characters long",
}
"""What a parameter must be that fails in one of pydantic's ways."""


def check_query(given: Iterable[tuple[str, str]], known: Collection[str]) -> None:
    """Refuse a query with a parameter that its address does not have, or that it has twice.

    Raises:
        ValidationFailed: it names the parameter, and those that there are.
    """
    seen: set[str] = set()
    for name, _ in given:
        if name not in known:
            there = f"it has {', '.join(sorted(known))}" if known else "it has none"
            raise ValidationFailed(
                f"this address has no parameter {name[:64]}; {there}", field=name[:64]
            )
        if name in seen:
            raise ValidationFailed(f"{name} was given twice; give it once", field=name)
        seen.add(name)


def malformed(fault: Mapping[str, Any]) -> ValidationFailed:
    """Return the refusal of a parameter, from pydantic's description of its fault."""
    name = str(fault["loc"][-1])
    limits: Mapping[str, Any] = fault.get("ctx", {})
    if limits.get("pattern") in _FORMS:
        return wrong_form(name, limits["pattern"])
    wanted = _MUST_BE.get(fault["type"])
    if wanted is None:
        return ValidationFailed(
            f"{name} is not as /openapi.json describes this parameter", field=name
        )
    return ValidationFailed(f"{name} must be {wanted.format_map(limits)}", field=name)


def wrong_form(name: str, form: str) -> ValidationFailed:
    """Return the refusal of a parameter that is not of one of the forms of this module."""
    return ValidationFailed(f"{name} must be {_FORMS[form]}", field=name)
