"""The key grammar: the only module that builds or reads ``pk`` and ``sk``.

====================  =====================  ============  ====================================
item                  pk                     sk            attributes
====================  =====================  ============  ====================================
head                  ``gw|head|shard``      ``head``      c l v e t lb fb o
log entry             ``gw|log|shard``       stamp, hex    d n tb lb p r
row state             ``gw|row|table|hash``  row id        d c
append mark           ``gw|mark|shard``      client id     d c
configuration         ``gw|config``          ``config``    d v
flush state           ``gw|flush``           ``flush``     w u
flushed table         ``gw|flushed``         table         c
client state          ``gw|client|client``   ``client``    d h
registry of gateways  ``gateways``           gateway id
====================  =====================  ============  ====================================

A gateway id holds no ``|``, so no gateway's keys can be another's: tenants are apart by prefix.

Attributes: ``c`` commit, ``d`` data, ``e`` epoch, ``fb`` flushed bytes, ``h`` digest, ``l`` last
entry, ``lb`` logged bytes, ``n`` deltas, ``o`` oldest unflushed, ``p`` previous entry, ``r`` rule
rows, ``t`` trimmed, ``tb`` tables, ``u`` until, ``v`` configuration version, ``w`` watermark. None
is a word that DynamoDB reserves.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final
from zlib import crc32

from lakesync.errors import ValidationFailed
from lakesync.ports import ROW_PARTS

HEAD: Final = "head"
CONFIG: Final = "config"
FLUSH: Final = "flush"
CLIENT: Final = "client"
GATEWAYS: Final = "gateways"
_GATEWAY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


@lru_cache(maxsize=256)
def check_gateway(gateway: str) -> str:
    """Give the gateway id back if it is one.

    Raises:
        ValidationFailed: it is not 1 to 64 letters, digits, ``_`` or ``-``.
    """
    if _GATEWAY.fullmatch(gateway) is None:
        raise ValidationFailed(
            "a gateway id is 1 to 64 letters, digits, _ or -, and begins with a letter or digit",
            field="gateway",
        )
    return gateway


def head_pk(gateway: str, shard: str) -> str:
    """Give the partition key of a shard's head."""
    return f"{check_gateway(gateway)}|head|{shard}"


def log_pk(gateway: str, shard: str) -> str:
    """Give the partition key of a shard's log."""
    return f"{check_gateway(gateway)}|log|{shard}"


def stamp_sk(stamp: int) -> str:
    """Give the sort key of a log entry; text order is stamp order."""
    return f"{stamp:016x}"


def row_pk(gateway: str, table: str, row_id: str) -> str:
    """Give the partition key of a row state; its sort key is the row id."""
    return f"{check_gateway(gateway)}|row|{table}|{crc32(row_id.encode()) % ROW_PARTS:x}"


def row_pks(gateway: str, table: str) -> list[str]:
    """Give all partition keys of a table's row states, in the order of their hashes."""
    return [f"{check_gateway(gateway)}|row|{table}|{part:x}" for part in range(ROW_PARTS)]


def row_place(row_id: str) -> str:
    """Give a row's place among its table's: its hash, one digit, and its id."""
    return f"{crc32(row_id.encode()) % ROW_PARTS:x}{row_id}"


def mark_pk(gateway: str, shard: str) -> str:
    """Give the partition key of the append marks in a shard; the sort key is the client id."""
    return f"{check_gateway(gateway)}|mark|{shard}"


def config_pk(gateway: str) -> str:
    """Give the partition key of a gateway's configuration."""
    return f"{check_gateway(gateway)}|config"


def flush_pk(gateway: str) -> str:
    """Give the partition key of a gateway's flush state."""
    return f"{check_gateway(gateway)}|flush"


def flushed_pk(gateway: str) -> str:
    """Give the partition key of a gateway's flushed tables; the sort key is the table."""
    return f"{check_gateway(gateway)}|flushed"


def client_pk(gateway: str, client_id: str) -> str:
    """Give the partition key of what is remembered of a client: one each, as each polls."""
    return f"{check_gateway(gateway)}|client|{client_id}"
