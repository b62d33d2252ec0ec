"""Statements of one shape: they differ in the names of tables and in long numbers only.

What the emulator makes of a statement depends on these names only in that it repeats them. So it is
made once for each shape, and the names are put in afterwards.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

_VARYING = re.compile(
    r"""(?<=[`".])([A-Za-z_]\w*\d\w*)(?=[`"])|(?<![\w.`"'])(\d{12,18})(?![\w.`"'])"""
)
"""Names in quotes with a digit in them, and numbers that no type, scale or limit has."""
_PUT = re.compile(r"shape_(\d+)_of_names|9191919191919(\d{3})")
_NAMES_MAX = 999
_KEPT_MAX = 20_000


class Shape(NamedTuple):
    """A statement with placeholders, and what stood in their places."""

    text: str
    names: tuple[str, ...]

    def restored(self, text: str) -> str:
        """Return a text that was made of this shape, with the names and numbers put in."""
        if not self.names:
            return text
        return _PUT.sub(lambda put: self.names[int(put[1] or put[2])], text)

    def place(self, name: str) -> str:
        """Return what stands for a name in this shape; the name itself if nothing does."""
        return f"shape_{self.names.index(name)}_of_names" if name in self.names else name


def shape_of(text: str) -> Shape | None:
    """Return the shape of a statement; None if it has to be read as it is."""
    if _PUT.search(text):
        return None
    places: dict[str, int] = {}

    def put(match: re.Match[str]) -> str:
        place = places.setdefault(match[0], len(places))
        return f"shape_{place}_of_names" if match[1] else f"9191919191919{place:03d}"

    shaped = _VARYING.sub(put, text)
    # Two names that differ in case alone may be one name.
    if len(places) > _NAMES_MAX or len({name.lower() for name in places}) < len(places):
        return None
    return Shape(shaped, tuple(places))


def once_for_a_shape(
    make: Callable[..., Any], restored: Callable[[Shape, Any], Any] = lambda _, made: made
) -> Callable[..., Any]:
    """Return a function of a statement that does its work once for each shape.

    Args:
        make: the function: of a statement, and of other values that can be hashed.
        restored: puts the names of a shape into what was made; if omitted, it names nothing.
    """
    kept: dict[Hashable, Any] = {}

    def made_once(statement: str, *values: Any, **named: Any) -> Any:
        shape = shape_of(statement)
        if shape is None:
            return restored(Shape(statement, ()), make(statement, *values, **named))
        key = (shape.text, values, tuple(named.items()))
        if key not in kept:
            if len(kept) >= _KEPT_MAX:
                kept.clear()
            try:
                kept[key] = make(shape.text, *values, **named)
            except Exception:  # noqa: BLE001 - the error shall speak of the statement itself
                return restored(Shape(statement, ()), make(statement, *values, **named))
        return restored(shape, kept[key])

    return made_once
