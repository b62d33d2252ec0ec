"""Positions that are valid on all servers of a group: sets of transaction ids.

MariaDB states the last transaction of each domain (``0-1-27``), MySQL all executed ones
(``3e11fa47-71ca-11e1-9e33-c80aa9429562:1-27``).
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING
from uuid import UUID

if TYPE_CHECKING:
    from collections.abc import Mapping

Intervals = list[tuple[int, int]]
"""First and last numbers, in order, that neither touch nor overlap."""


def mariadb_grown(position: str, gtid: str) -> str:
    """Return a position of MariaDB, advanced by a transaction."""
    last = {each.split("-")[0]: each for each in position.split(",") if each}
    last[gtid.split("-", maxsplit=1)[0]] = gtid
    return ",".join(last.values())


def mysql_grown(position: str, gtid: str) -> str:
    """Return a position of MySQL, advanced by a transaction."""
    server, _, number = gtid.partition(":")
    ranges = mysql_ranges(position)
    ranges[server] = _with(ranges.get(server, []), int(number))
    return mysql_text(ranges)


def mysql_ranges(position: str) -> dict[str, Intervals]:
    """Parse a position of MySQL.

    Raises:
        ValueError: it is malformed, or has tags.
    """
    ranges: dict[str, Intervals] = {}
    for each in "".join(position.split()).split(","):
        if each:
            server, *parts = each.split(":")
            pairs = (part.partition("-") for part in parts)
            ranges[str(UUID(server))] = sorted(
                (int(first), int(last or first)) for first, _, last in pairs
            )
    return ranges


def mysql_text(ranges: Mapping[str, Intervals]) -> str:
    """Write a position of MySQL."""
    return ",".join(
        ":".join([server, *(f"{a}-{b}" if b > a else str(a) for a, b in parts)])
        for server, parts in ranges.items()
    )


def mysql_bytes(position: str) -> bytes:
    """Return a position in the binary form in which MySQL's log is requested."""
    ranges = mysql_ranges(position)
    data = struct.pack("<Q", len(ranges))
    for server, parts in ranges.items():
        data += UUID(server).bytes + struct.pack("<Q", len(parts))
        for first, last in parts:
            data += struct.pack("<QQ", first, last + 1)
    return data


def mysql_position(data: bytes) -> str:
    """Parse a position in the form of `mysql_bytes`, with which MySQL begins a log file.

    Raises:
        ValueError: it has tags, as its eighth byte says.
    """
    if data[7]:
        raise ValueError("the position has tags")
    ranges: dict[str, Intervals] = {}
    (servers,), at = struct.unpack_from("<Q", data), 8
    for _ in range(servers):
        server, (count,) = UUID(bytes=data[at : at + 16]), struct.unpack_from("<Q", data, at + 16)
        at += 24
        pairs = struct.iter_unpack("<QQ", data[at : at + 16 * count])
        ranges[str(server)] = [(first, behind - 1) for first, behind in pairs]
        at += 16 * count
    return mysql_text(ranges)


def _with(parts: Intervals, number: int) -> Intervals:
    grown: Intervals = []
    for first, last in sorted([*parts, (number, number)]):
        if grown and first <= grown[-1][1] + 1:
            grown[-1] = (grown[-1][0], max(last, grown[-1][1]))
        else:
            grown.append((first, last))
    return grown
