"""The key grammar: the only module that builds or reads ``pk`` and ``sk``.

====================  =====================  ============  ====================================
item                  pk                     sk            attributes
====================  =====================  ============  ====================================
main lane's head      ``gw|head``            ``main``      as below, and t ln
head of lane          ``gw|heads|group``     lane          c l v e lb fb o i x
log entries           ``gw|log|lane``        stamp, hex    d
row state             ``gw|row|table|hash``  row id        d c
append mark           ``gw|mark|shard``      client id     d c
configuration         ``gw|config``          ``config``    d v
destinations          ``gw|destinations``    ``all``       d v
delivery state        ``|delivered|gw``      name|table    d
flush state           ``gw|flush``           ``flush``     w u
flushed table         ``gw|flushed``         table         c
client state          ``gw|client|hash``     client id     d h
client's user         ``|user|gw|hash``      client id     us
revocation            ``|revoked|gw``        kind, name    ad ms
use and quota         ``|quota|gw``          ``quota``     nb nd np qb qd qp w
connector             ``|connector|gw``      name          d le lu ps
action handler        ``|action|gw``         name          d
registry of gateways  ``gateways``           gateway id
====================  =====================  ============  ====================================

A gateway id contains no ``|``, so no gateway's keys can be another's: tenants are apart by prefix.
Keys that begin with ``|`` are of items without data (who may use a gateway, how much, how it
performs), so that an IAM policy can name them. Clients are spread over 16 partitions by a hash of
their ids: one is too slow for the polls of all clients, and one for each could not be listed.

The sort key of log entries that lie in one item is the stamp of the last. Eight lanes of each shard
have their heads in one group, which is one item collection: it is read at once, and eight lanes
write less than one partition takes.

The index ``unflushed`` has the keys ``pk`` and ``o``, so it lists the items that have an ``o``:
heads behind which something waits. The first commit sets it, a flush that caught up removes it.

Attributes: ``ad`` administrator, ``c`` commit, ``d`` data, ``e`` epoch, ``fb`` flushed bytes, ``h``
digest, ``i`` entries in the head, ``l`` last entry, ``lb`` logged bytes, ``le`` lease, ``ln``
lanes, ``lu`` leased until, ``ms`` milliseconds, ``nb`` ``nd`` ``np`` used bytes, deltas, pushes,
``o`` oldest unflushed, ``ps`` poll state, ``qb`` ``qd`` ``qp`` quota of them, ``t`` trimmed, ``u``
until, ``us`` user, ``v`` configuration version, ``w`` watermark or window, ``x`` closed. None is a
word that DynamoDB reserves.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Final
from zlib import crc32

from lakesync.core.layout import LANES_MAX, MAIN_LANE, lane_number
from lakesync.errors import ValidationFailed
from lakesync.ports import ROW_PARTS

if TYPE_CHECKING:
    from collections.abc import Iterable

CONFIG: Final = "config"
DESTINATIONS: Final = "all"
FLUSH: Final = "flush"
QUOTA: Final = "quota"
GATEWAYS: Final = "gateways"
_GROUP: Final = 8
"""Lanes of a shard whose heads lie together; for ever the same."""
GROUPS: Final = range(-(-LANES_MAX // _GROUP))
CLIENT_PARTS: Final = 16
"""Partitions over which the clients of a gateway are spread; for ever the same."""
UNFLUSHED: Final = "unflushed"
"""The index of heads behind which something waits to be flushed."""
_GATEWAY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


@lru_cache(maxsize=256)
def check_gateway(gateway: str) -> str:
    """Return the gateway id if it is one.

    Raises:
        ValidationFailed: it is not 1 to 64 letters, digits, ``_`` or ``-``.
    """
    if _GATEWAY.fullmatch(gateway) is None:
        raise ValidationFailed(
            "a gateway id is 1 to 64 letters, digits, _ or -, and begins with a letter or digit",
            field="gateway",
        )
    return gateway


def head_key(gateway: str, lane: str) -> tuple[str, str]:
    """Return the partition key and the sort key of a lane's head."""
    if lane == MAIN_LANE:
        return f"{check_gateway(gateway)}|head", lane
    return heads_pk(gateway, lane_number(lane) // _GROUP), lane


def heads_pk(gateway: str, group: int) -> str:
    """Return the partition key of a group of lanes' heads."""
    return f"{check_gateway(gateway)}|heads|{group}"


def groups(numbers: Iterable[int]) -> range:
    """Return the groups that hold the heads of lanes with such numbers."""
    return range(max(numbers, default=-1) // _GROUP + 1)


def log_pk(gateway: str, lane: str) -> str:
    """Return the partition key of a lane's log."""
    return f"{check_gateway(gateway)}|log|{lane}"


def stamp_sk(stamp: int) -> str:
    """Return the sort key of a log entry; text order is stamp order."""
    return f"{stamp:016x}"


def row_pk(gateway: str, table: str, row_id: str) -> str:
    """Return the partition key of a row state; its sort key is the row id."""
    return f"{check_gateway(gateway)}|row|{table}|{crc32(row_id.encode()) % ROW_PARTS:x}"


def row_pks(gateway: str, table: str) -> list[str]:
    """Return all partition keys of a table's row states, in the order of their hashes."""
    return [f"{check_gateway(gateway)}|row|{table}|{part:x}" for part in range(ROW_PARTS)]


def row_place(row_id: str) -> str:
    """Return a row's place among its table's: its hash, one digit, and its id."""
    return f"{crc32(row_id.encode()) % ROW_PARTS:x}{row_id}"


def mark_pk(gateway: str, shard: str) -> str:
    """Return the partition key of the append marks in a shard; the sort key is the client id."""
    return f"{check_gateway(gateway)}|mark|{shard}"


def config_pk(gateway: str) -> str:
    """Return the partition key of a gateway's configuration."""
    return f"{check_gateway(gateway)}|config"


def destinations_pk(gateway: str) -> str:
    """Return the partition key of a gateway's declared destinations."""
    return f"{check_gateway(gateway)}|destinations"


def delivered_pk(gateway: str) -> str:
    """Return the partition key of the delivery states of a gateway's destinations."""
    return f"|delivered|{check_gateway(gateway)}"


def delivered_sk(destination: str, table: str) -> str:
    """Return the sort key of a table's delivery state; a destination's name contains no ``|``."""
    return f"{destination}|{table}"


def flush_pk(gateway: str) -> str:
    """Return the partition key of a gateway's flush state."""
    return f"{check_gateway(gateway)}|flush"


def flushed_pk(gateway: str) -> str:
    """Return the partition key of a gateway's flushed tables; the sort key is the table."""
    return f"{check_gateway(gateway)}|flushed"


def client_pk(gateway: str, client_id: str) -> str:
    """Return the partition key of a client's stored state; the sort key is the client id."""
    return f"{check_gateway(gateway)}|client|{_part(client_id)}"


def client_pks(gateway: str) -> list[str]:
    """Return all partition keys of the stored states of a gateway's clients."""
    return [f"{check_gateway(gateway)}|client|{part:x}" for part in range(CLIENT_PARTS)]


def gateway_of(pk: str) -> str:
    """Return the gateway whose item a partition key is."""
    return pk.partition("|")[0]


def user_pk(gateway: str, client_id: str) -> str:
    """Return the partition key of a client's user; the sort key is the client id."""
    return f"|user|{check_gateway(gateway)}|{_part(client_id)}"


def user_pks(gateway: str) -> list[str]:
    """Return all partition keys of the users of a gateway's clients."""
    return [f"|user|{check_gateway(gateway)}|{part:x}" for part in range(CLIENT_PARTS)]


def client_place(client_id: str) -> str:
    """Return a client's place among its gateway's: its hash, one digit, and its id."""
    return f"{_part(client_id)}{client_id}"


def _part(client_id: str) -> str:
    return f"{crc32(client_id.encode()) % CLIENT_PARTS:x}"


def quota_pk(gateway: str) -> str:
    """Return the partition key of a gateway's use and quota."""
    return f"|quota|{check_gateway(gateway)}"


def connector_pk(gateway: str) -> str:
    """Return the partition key of a gateway's connectors; the sort key is the name."""
    return f"|connector|{check_gateway(gateway)}"


def action_pk(gateway: str) -> str:
    """Return the partition key of a gateway's action handlers; the sort key is the name."""
    return f"|action|{check_gateway(gateway)}"


def revoked_pk(gateway: str) -> str:
    """Return the partition key of a gateway's revocations: one query reads them all."""
    return f"|revoked|{check_gateway(gateway)}"


def revoked_sk(kind: str, name: str) -> str:
    """Return the sort key of a user's or a client's revocation; ``kind`` contains no ``|``."""
    return f"{kind}|{name}"
