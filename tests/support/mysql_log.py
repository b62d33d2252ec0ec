"""A writer of MySQL's binary log and of its JSON, as MySQL's documentation describes both."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any
from uuid import UUID

if TYPE_CHECKING:
    from collections.abc import Sequence

GTID, QUERY, XID, TABLE_MAP, WRITE, UPDATE, DELETE, ROTATE, FORMAT, XA_PREPARE, PAYLOAD = (
    33, 2, 16, 19, 30, 31, 32, 4, 15, 38, 40,
)  # fmt: skip


def event(kind: int, body: bytes, *, pos: int = 0, seconds: int = 0) -> bytes:
    """Return an event without a checksum; `pos` is where the next begins."""
    return struct.pack("<IBIIIH", seconds, kind, 7, 19 + len(body), pos, 0) + body


def gtid(server: str, number: int, commit_us: int) -> bytes:
    times = commit_us.to_bytes(7, "little")
    return b"\1" + UUID(server).bytes + struct.pack("<QBQQ", number, 2, 0, 1) + times


def query(sql: str, schema: str = "shop") -> bytes:
    name = schema.encode()
    return struct.pack("<IIBHH", 1, 0, len(name), 0, 0) + name + b"\0" + sql.encode()


def table_map(
    name: str, types: Sequence[tuple[int, bytes]], names: Sequence[str], schema: str = "shop"
) -> bytes:
    """Describe a table whose first column is its key, with texts in utf8mb4."""
    body = struct.pack("<IHH", 9, 0, 1)
    for text in (schema, name):
        body += bytes([len(text)]) + text.encode() + b"\0"
    meta = b"".join(each for _, each in types)
    body += bytes([len(types), *(kind for kind, _ in types), len(meta)]) + meta
    body += bytes((len(types) + 7) // 8)
    packed = b"".join(bytes([len(each)]) + each.encode() for each in names)
    for kind, data in ((2, b"\xfc\xff\x00"), (4, packed), (8, b"\0")):
        body += bytes([kind, len(data)]) + data
    return body


def rows(width: int, data: bytes, present: Sequence[bytes]) -> bytes:
    return struct.pack("<IHHH", 9, 0, 1, 2) + bytes([width]) + b"".join(present) + data


def document(value: Any, *, is_large: bool) -> bytes:
    """Write a JSON document as MySQL stores it."""
    kind, data = _json(value, is_large=is_large)
    return bytes([kind]) + data


def _json(value: Any, *, is_large: bool) -> tuple[int, bytes]:
    if value is None or isinstance(value, bool):
        return 4, bytes([(None, True, False).index(value)])
    if isinstance(value, int):
        kind, form = next(
            (kind, form)
            for kind, form, low, high in (
                (5, "<h", -(1 << 15), 1 << 15), (6, "<H", 0, 1 << 16),
                (7, "<i", -(1 << 31), 1 << 31),
                (8, "<I", 0, 1 << 32), (9, "<q", -(1 << 63), 1 << 63), (10, "<Q", 0, 1 << 64),
            )
            if low <= value < high
        )  # fmt: skip
        return kind, struct.pack(form, value)
    if isinstance(value, float):
        return 11, struct.pack("<d", value)
    if isinstance(value, str):
        return 12, _sized(value.encode())
    return _container(value, is_large=is_large)


def _sized(data: bytes) -> bytes:
    size, out = len(data), b""
    while size >= 128:
        out, size = out + bytes([size & 127 | 128]), size >> 7
    return out + bytes([size]) + data


def _container(value: Any, *, is_large: bool) -> tuple[int, bytes]:
    width = 4 if is_large else 2
    keys = [key.encode() for key in value] if isinstance(value, dict) else []
    values = list(value.values()) if isinstance(value, dict) else value
    place = 2 * width + len(keys) * (width + 2) + len(values) * (1 + width)
    entries, texts = b"", b"".join(keys)
    for key in keys:
        entries += place.to_bytes(width, "little") + len(key).to_bytes(2, "little")
        place += len(key)
    behind = b""
    for each in values:
        kind, data = _json(each, is_large=is_large)
        if kind in ({4, 5, 6, 7, 8} if is_large else {4, 5, 6}):
            entries += bytes([kind]) + data.ljust(width, b"\0")
        else:
            entries += bytes([kind]) + place.to_bytes(width, "little")
            behind, place = behind + data, place + len(data)
    head = len(values).to_bytes(width, "little") + place.to_bytes(width, "little")
    return (0 if isinstance(value, dict) else 2) + is_large, head + entries + texts + behind
