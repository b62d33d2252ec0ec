"""The form of stored items: their keys, their packed contents, and what one commit may change.

Both implementations of the buffer use it, and the stores beside it. Alone it builds and reads the
keys ``pk`` and ``sk`` of the buffer's table:

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

The contents are deflated runs, packed marks, and configuration as text. The conditions of a commit
and DynamoDB's limits are those of the buffer in memory too, so that tests notice them.
"""

from __future__ import annotations

import json
import re
import struct
from dataclasses import asdict, replace
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Final, NamedTuple
from zlib import crc32

from lakesync.core.config import (
    CONFIG_BYTES_MAX,
    WRITES,
    GatewayConfig,
    check_format,
    config_from_json,
    config_to_json,
    known,
)
from lakesync.core.destinations import Destinations, destinations_from_json, destinations_to_json
from lakesync.core.layout import LANES_MAX, MAIN_LANE, lane_number
from lakesync.core.merge import AppendMark
from lakesync.core.wording import plural
from lakesync.errors import Conflict, InternalError, ValidationFailed
from lakesync.ports import GATEWAY_KIND, NO_HEAD, ROW_PARTS, DeliveryState, HeadMoved, StaleRead
from lakesync.wire.log_entries import deflate, encode_chunk, inflate

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from lakesync.core.clock import Stamp
    from lakesync.ports import Commit, Head, MarkKey, RowKey, StoredMark, StoredRow

# --- keys -----------------------------------------------------------------------------------------


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


class Partition(NamedTuple):
    """A partition of a gateway's items."""

    kind: str
    pk: str
    kept: str = ""
    """The sort key of the item that stays when the gateway is deleted."""


def side_partitions(gateway: str) -> list[Partition]:
    """Return the partitions of a gateway's items beside its buffer."""
    return [
        *(Partition("users", pk) for pk in user_pks(gateway)),
        Partition("revocations", revoked_pk(gateway), revoked_sk(GATEWAY_KIND, gateway)),
        Partition("quota", quota_pk(gateway)),
        Partition("connectors", connector_pk(gateway)),
        Partition("actions", action_pk(gateway)),
    ]


# --- contents -------------------------------------------------------------------------------------


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


# --- limits, and the conditions of a commit -------------------------------------------------------


ITEMS_MAX: Final = 100
"""Items of one commit: DynamoDB's limit, applied in memory too so that tests notice it."""
ITEM_BYTES_MAX: Final = 400 * 1024
"""Size of one item: DynamoDB's limit."""
COMMIT_BYTES_MAX: Final = 4 * 1024 * 1024
"""Size of all items of one commit: DynamoDB's limit."""

PAGE_BYTES_MAX: Final = 1024 * 1024
"""Entries or rows that one read gives, inflated; beyond this it ends early."""


def moved(head: Head | None, seen: Head | None) -> bool:
    """Return whether a head is not as it was seen."""
    return (head and head.commit) != (seen and seen.commit)


def is_used(head: Head) -> bool:
    """Return whether a head contains entries, or shows that any wait."""
    return bool(head.recent or head.logged_bytes or head.oldest_unflushed)


def emptied(head: Head) -> Head:
    """Return the head of a deleted gateway: it makes late commits fail.

    The stamp of its last entry stays as well, so that a reader of the log notices that the entry is
    missing.
    """
    return replace(head, recent=(), logged_bytes=0, flushed_bytes=0, oldest_unflushed=0)


def check_heads(heads: Mapping[str, Head], commit: Commit) -> None:
    """Refuse a commit whose heads moved.

    Raises:
        HeadMoved: with the heads as they are.
    """
    others = {
        lane: heads.get(lane, NO_HEAD)
        for lane, part in commit.lanes.items()
        if moved(heads.get(lane), part.seen)
    }
    if others:
        raise HeadMoved(others)


def check_states(
    rows: Mapping[RowKey, StoredRow], marks: Mapping[MarkKey, StoredMark], commit: Commit
) -> None:
    """Refuse a commit whose rows or marks are not as they were seen.

    Raises:
        StaleRead: some are not.
    """
    stale = {
        key: rows.get(key)
        for key, row in commit.rows.items()
        if _commit_of(rows.get(key)) != row.seen
    }
    marks_stale = sum(_commit_of(marks.get(key)) != put.seen for key, put in commit.marks.items())
    if stale or marks_stale:
        counted = f"{plural(len(stale), 'row')} and {plural(marks_stale, 'mark')}"
        raise StaleRead(f"not as seen: {counted}", stale)


def check_lanes(main: Head | None, seen: Head | None, to: Stamp) -> None:
    """Refuse a change of the main lane's head, if its lanes are not as seen, or it is above.

    Raises:
        HeadMoved: with the head as it is.
    """
    now, before = main or NO_HEAD, seen or NO_HEAD
    if now.lanes != before.lanes or (main is None) != (seen is None) or (to and now.commit >= to):
        raise HeadMoved({MAIN_LANE: now})


def _commit_of(stored: StoredRow | StoredMark | None) -> Stamp:
    return stored.commit if stored else 0


def check_size(commit: Commit) -> None:
    """Refuse what DynamoDB would refuse: the gateway must have cut it before.

    Raises:
        InternalError: it is too large.
    """
    sizes = [len(encode_chunk(part.chunk)) for part in commit.lanes.values() if part.chunk]
    sizes += [len(row.state) for row in commit.rows.values()]
    sizes += [len(pack_mark(put.mark)) for put in commit.marks.values()]
    items = len(sizes) + len(commit.lanes)
    if items > ITEMS_MAX or max(sizes, default=0) > ITEM_BYTES_MAX or sum(sizes) > COMMIT_BYTES_MAX:
        raise InternalError(f"a commit of {items} items, {sum(sizes)} bytes does not fit")


def within(
    keys: Sequence[RowKey], rows: Mapping[RowKey, StoredRow], bytes_max: int
) -> tuple[dict[RowKey, StoredRow], list[RowKey]]:
    """Return the rows of keys in order, up to so many bytes, and the keys that are left."""
    kept: dict[RowKey, StoredRow] = {}
    size = 0
    for number, key in enumerate(keys):
        if number and size >= bytes_max:
            return kept, list(keys[number:])
        if key in rows:
            kept[key] = rows[key]
            size += len(rows[key].state)
    return kept, []
