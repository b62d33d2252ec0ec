"""What a case is, and the values that cases are made of, drawn by a seed that never changes.

Texts, numbers and stamps are chosen as an enemy would choose them: characters that order one way by
code point and another by UTF-16 code unit, numbers at the edge of a double, stamps that differ by
one, names that differ in case alone.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any, Final, TypeVar

from lakesync.core.clock import COUNTER_MAX, STAMP_MAX, stamp
from lakesync.core.delta import parse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from lakesync.core.delta import Delta
    from lakesync.core.merge import RowState

T = TypeVar("T")
Case = dict[str, Any]
"""``laws``, ``given``, ``expect``."""
WALL_MS: Final = 1_800_000_000_000
"""A wall-clock time to count from."""


@dataclass(frozen=True)
class Subject:
    """One file of vectors."""

    about: str
    given: Mapping[str, str]
    expect: Mapping[str, str]
    make: Callable[[], Iterator[Case]]

    def cases(self) -> list[Case]:
        """Return all cases, the same ones each time."""
        return list(self.make())


def case(laws: str, given: object, expect: object) -> Case:
    """Return a case of some laws, given as words."""
    return {"laws": laws.split(), "given": given, "expect": expect}


def base64_of(raw: bytes) -> str:
    """Return bytes as vectors have them."""
    return base64.b64encode(raw).decode()


def delta_fields(delta: Delta) -> dict[str, object]:
    """Return a delta as JSON on the wire has it, without its id."""
    return {
        "op": delta.op.name,
        "table": delta.table,
        "rowId": delta.row_id,
        "clientId": delta.client_id,
        "columns": [{"column": name, "value": parse(raw)} for name, raw in delta.columns],
        "hlc": str(delta.hlc),
    }


def state_fields(state: RowState) -> dict[str, object]:
    """Return a row's state: each value as the base64 of its canonical bytes."""
    return {
        "alive": str(state.alive),
        "deleted": str(state.deleted),
        "columns": {
            name: {"hlc": str(hlc), "clientId": client_id, "value": base64_of(raw)}
            for name, (hlc, client_id, raw) in sorted(state.columns.items())
        },
    }


TEXTS: Final = (
    "", "a", "A", "Buy milk", "\u00e9", "e\u0301", "\uffee", "\U0001f600", "\u200d",
    "\x00", "\x1f", "\x7f", "\u2028", "\ufeffbom", '"', "\\", "\\u0041", "</script>", "%s",
    "007", "1e3", "null", "[]", "{", "\u0661\u0662", " a ", "a\nb", "\ud7ff", "\ue000",
    "long " * 20,
)  # fmt: skip
NUMBERS: Final = (
    0, -0.0, 1, -1, 0.1, 0.1 + 0.2, 1.5, -1.5, 1e-6, 1e-7, 123456.789, 1e15, 1e16, 1e20, 1e21, 1e22,
    5e-324, 2.2250738585072014e-308, 1.7976931348623157e308, 2**53 - 1, 2**53, -(2**53), 2**53 + 2,
    4503599627370496.5, 9007199254740994, 295147905179352830000, 333333333.33333329, 1e300,
)  # fmt: skip
NAMES: Final = ("id", "title", "Title", "_x", "a1", "order", "rowid", "constructor", "__proto__")
CLIENTS: Final = ("a", "b", "phone-1", "\u00e9", "\uffee", "\U0001f600")
"""The last two order one way by their bytes, the other way by UTF-16 code units."""


class Chance:
    """Draws values; equal seeds draw equal values, in every release of Python."""

    def __init__(self, seed: str) -> None:
        self._random = Random(seed)

    def below(self, end: int) -> int:
        """Return a whole number from 0 on, below an end."""
        return self._random.randrange(end)

    def one_of(self, choices: Sequence[T]) -> T:
        """Return one of some values."""
        return choices[self.below(len(choices))]

    def some_of(self, choices: Any, count_max: int) -> list[Any]:
        """Return different values, from none to as many as asked for."""
        return self._random.sample(list(choices), self.below(min(count_max, len(choices)) + 1))

    def shuffled(self, values: Any) -> list[Any]:
        """Return the values in another order."""
        return self._random.sample(list(values), len(values))

    def is_lucky(self, one_in: int) -> bool:
        """Return True once in so many times."""
        return self.below(one_in) == 0

    def text(self) -> str:
        """Return a text."""
        return "".join(self.one_of(TEXTS) for _ in range(1 + self.below(2)))

    def number(self) -> float:
        """Return a number that a double holds exactly."""
        if self.is_lucky(2):
            return float(self.one_of(NUMBERS))
        return self._random.uniform(-1, 1) * 10.0 ** (self.below(40) - 20)

    def value(self, depth: int = 3) -> Any:
        """Return any JSON value."""
        kind = self.below(8 if depth else 6)
        if kind == 6:
            return [self.value(depth - 1) for _ in range(self.below(4))]
        if kind == 7:
            return {self.text(): self.value(depth - 1) for _ in range(self.below(4))}
        if kind in {0, 1}:
            return self.text()
        return self.number() if kind in {2, 3} else self.one_of((None, True, False))

    def stamp(self) -> int:
        """Return a stamp: mostly one of few, so that ties are common."""
        if self.is_lucky(6):
            return int(self.one_of((1, STAMP_MAX, STAMP_MAX - 1, stamp(WALL_MS, COUNTER_MAX))))
        return stamp(WALL_MS + self.below(3), self.below(3))
