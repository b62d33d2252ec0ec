"""Vectors of typed columns: which values are of a type, and the value that each stands for."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from lakesync.client.storage.cell_values import decimal_text, kind_of, read_value
from lakesync.core.column_types import fits
from tests.support.hostile_texts import KINDS, hostile
from tests.support.vectors.case import Chance, Subject, base64_of, case

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.vectors.case import Case

CASES: Final = 400


def _cases() -> Iterator[Case]:
    chance = Chance("values")
    raws = hostile()
    chosen = [(kind, raw) for kind in KINDS for raw in raws]
    fitting = [pair for pair in chosen if fits(*pair)]
    others = [pair for pair in chosen if not fits(*pair)]
    half = CASES // 2
    for kind, raw in [*chance.shuffled(fitting)[:half], *chance.shuffled(others)[:half]]:
        given = {"type": kind, "value": base64_of(raw)}
        if not fits(kind, raw):
            yield case("S1 K34", given, {"fits": False})
        else:
            yield case("S1 K34", given, {"fits": True, **_typed(read_value(kind_of(kind), raw))})


def _typed(value: Any) -> dict[str, object]:
    """Return a typed value as text, with what it is; JSON values as they are."""
    if isinstance(value, Decimal):
        return {"is": "decimal", "text": decimal_text(value)}
    if isinstance(value, datetime):
        return {"is": "timestamp"}  # the text that was sent: it has digits that a datetime lacks
    if isinstance(value, date):
        return {"is": "date", "text": value.isoformat()}
    if isinstance(value, bytes):
        return {"is": "bytes", "bytes": base64_of(value)}
    if isinstance(value, int) and not isinstance(value, bool):
        return {"is": "integer", "text": str(value)}
    return {"is": "json"}


SUBJECT: Final = Subject(
    "Which JSON values a column of a type takes, and what they stand for.",
    {"type": "the column's type", "value": "canonical JSON"},
    {
        "fits": "whether the value is of the type; another is SCHEMA_ERROR where it is written",
        "is": "what an app reads; json: the value itself; timestamp: the text that was sent",
        "text": "of an integer or a decimal: all its digits; of a date: year-month-day",
        "bytes": "of bytes",
    },
    _cases,
)
