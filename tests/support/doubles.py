"""JSON numbers as IEEE 754 doubles, which is what they are to everyone but Python."""

from __future__ import annotations

import json
from typing import Any


def loads(raw: bytes) -> Any:
    """Read JSON text as ECMAScript does: a whole number beyond 2^53 is a double."""

    def whole(digits: str) -> int | float:
        value = int(digits)
        return value if abs(value) < 1 << 53 else float(digits)

    return json.loads(raw.decode(), parse_int=whole)
