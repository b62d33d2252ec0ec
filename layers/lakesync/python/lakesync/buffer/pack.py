"""Stored forms: deflated runs, packed marks, configuration as text."""

from __future__ import annotations

import json
import struct
from dataclasses import asdict
from itertools import accumulate, pairwise
from typing import Final

from lakesync.core.append import AppendMark
from lakesync.core.config import CONFIG_BYTES_MAX, GatewayConfig, config_from_json, config_to_json
from lakesync.core.destinations import (
    Destinations,
    destinations_from_json,
    destinations_to_json,
)
from lakesync.core.stored import WRITES, check_format, known
from lakesync.errors import Conflict
from lakesync.ports import DeliveryState
from lakesync.wire.log_chunk import deflate, inflate

_ID_BYTES: Final = 6
_MARK = struct.Struct(">BIQI")


def pack_mark(mark: AppendMark) -> bytes:
    """Return the stored form of an append mark: small differences of stamps, then ids."""
    stamps = [stamp for stamp, _ in mark.recent]
    steps = [after - before for before, after in pairwise([0, *stamps])]
    ids = b"".join([part.to_bytes(_ID_BYTES, "big") for _, part in mark.recent])
    head = _MARK.pack(WRITES, mark.moves, mark.last, len(steps))
    return deflate(head + struct.pack(f">{len(steps)}Q", *steps) + ids)


def unpack_mark(data: bytes) -> AppendMark:
    """Return the append mark that was packed, without anything that a later release appended.

    Raises:
        UpgradeRequired: only a later release can read it.
    """
    raw = inflate(data)
    needed, moves, last, count = _MARK.unpack_from(raw)
    check_format(needed, "an append mark")
    stamps = accumulate(struct.unpack_from(f">{count}Q", raw, _MARK.size))
    first = _MARK.size + 8 * count
    ids = raw[first : first + _ID_BYTES * count]
    parts = [
        int.from_bytes(ids[place : place + _ID_BYTES], "big")
        for place in range(0, len(ids), _ID_BYTES)
    ]
    return AppendMark(last, tuple(zip(stamps, parts, strict=True)), moves)


def pack_config(config: GatewayConfig) -> bytes:
    """Return the stored form of a configuration.

    Raises:
        Conflict: it has outgrown one item.
    """
    data = deflate(json.dumps(config_to_json(config)).encode())
    if len(data) > CONFIG_BYTES_MAX:
        raise Conflict(
            f"a gateway's schemas may hold {CONFIG_BYTES_MAX} bytes together; use more gateways"
        )
    return data


def pack_destinations(destinations: Destinations) -> bytes:
    """Return the stored form of the declared destinations.

    Raises:
        Conflict: it has outgrown one item.
    """
    data = deflate(json.dumps(destinations_to_json(destinations)).encode())
    if len(data) > CONFIG_BYTES_MAX:
        raise Conflict(
            f"a gateway's destinations may hold {CONFIG_BYTES_MAX} bytes together; declare fewer"
        )
    return data


def unpack_destinations(data: bytes) -> Destinations:
    """Return what was packed."""
    return destinations_from_json(json.loads(inflate(data)))


def pack_delivery_state(state: DeliveryState) -> bytes:
    """Return the stored form of a delivery's state."""
    return deflate(json.dumps(asdict(state)).encode())


def unpack_delivery_state(data: bytes) -> DeliveryState:
    """Return what was packed."""
    return known(DeliveryState, json.loads(inflate(data)))


def unpack_config(data: bytes) -> GatewayConfig:
    """Return the configuration that was packed."""
    return config_from_json(json.loads(inflate(data)))
