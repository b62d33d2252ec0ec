"""Numbers in the binary log: of fixed length, or with a length prefix."""

from __future__ import annotations

from typing import Final

_LONG: Final = {252: 2, 253: 3, 254: 8}


def unsigned(data: bytes, at: int, size: int) -> int:
    """Read a little-endian number."""
    return int.from_bytes(data[at : at + size], "little")


def packed(data: bytes, at: int) -> tuple[int, int]:
    """Read a length-encoded number; return it and the place after it."""
    first = data[at]
    if first < min(_LONG):
        return first, at + 1
    size = _LONG[first]
    return unsigned(data, at + 1, size), at + 1 + size


def packed_text(data: bytes, at: int) -> tuple[str, int]:
    """Read a text with a length prefix; return it and the place after it."""
    size, at = packed(data, at)
    return data[at : at + size].decode("utf-8", "replace"), at + size
