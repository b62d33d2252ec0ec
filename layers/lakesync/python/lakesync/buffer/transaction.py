"""A commit as one ``TransactWriteItems``, written directly as JSON.

This is the only request that is both large and frequent. Written by templates it costs a fifth of
building and encoding nested dictionaries.
"""

from __future__ import annotations

from base64 import b64encode
from json.encoder import encode_basestring
from typing import TYPE_CHECKING, NamedTuple

from lakesync.buffer import keys, pack
from lakesync.buffer.requests import NEVER_WRITTEN, STANDS_AS_SEEN
from lakesync.wire.log_chunk import encode_chunk

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lakesync.core.clock import Stamp
    from lakesync.ports import Commit, LaneCommit, LogEntry, RowKey

_NEW = f'"ConditionExpression":"{NEVER_WRITTEN}"'
_SHOW = ',"ReturnValuesOnConditionCheckFailure":"ALL_OLD"'


class Places(NamedTuple):
    """Which items of a transaction are heads, and which are rows, by their places."""

    heads: dict[int, str]
    rows: dict[int, RowKey]


def transact(table: str, commit: Commit) -> tuple[bytes, Places]:
    """Return the transaction of a commit, and what its items are."""
    name = encode_basestring(table)
    items: list[str] = []
    places = Places({}, {})
    for lane, part in commit.lanes.items():
        places.heads[len(items)] = lane
        items.append(_advance_head(name, lane, commit, part))
        if part.chunk:
            items.append(_put_chunk(name, keys.log_pk(commit.gateway, lane), part.chunk))
    for (shard, client), put in commit.marks.items():
        pk, data = keys.mark_pk(commit.gateway, shard), pack.pack_mark(put.mark)
        items.append(_put_state(name, pk, client, data, commit.stamp, put.seen))
    for key, row in commit.rows.items():
        places.rows[len(items)] = key
        pk = keys.row_pk(commit.gateway, *key)
        items.append(_put_state(name, pk, key[1], row.state, commit.stamp, row.seen, _SHOW))
    body = f'{{"TransactItems":[{",".join(items)}],"ClientRequestToken":"{commit.token}"}}'
    return body.encode(), places


def _advance_head(name: str, lane: str, commit: Commit, part: LaneCommit) -> str:
    pk, sk = keys.head_key(commit.gateway, lane)
    seen, entry = part.seen, part.entry
    condition = NEVER_WRITTEN if seen is None else STANDS_AS_SEEN
    change = "SET c = :c, l = :c, v = :v, lb = :lb, o = if_not_exists(o, :c)"
    values = (
        f'":c":{{"N":"{commit.stamp}"}},":v":{{"N":"{commit.config_version}"}},'
        f'":lb":{{"N":"{entry.logged_bytes}"}}'
    )
    if seen is not None:
        values += f',":seen":{{"N":"{seen.commit}"}}'
    if epoch := commit.first_epoch(lane, seen):
        change += ", e = :e"
        values += f',":e":{{"S":"{epoch}"}}'
    if part.chunk:
        change += " REMOVE i, x"
    else:
        recent = encode_chunk((*(seen.recent if seen else ()), entry))
        change += ", i = :i REMOVE x"
        values += f',":i":{{"B":"{b64encode(recent).decode()}"}}'
    return (
        f'{{"Update":{{"TableName":{name},'
        f'"Key":{{"pk":{{"S":"{pk}"}},"sk":{{"S":"{sk}"}}}},'
        f'"UpdateExpression":"{change}",'
        f'"ConditionExpression":"{condition}",'
        f'"ExpressionAttributeValues":{{{values}}}'
        f"{_SHOW}}}}}"
    )


def _put_chunk(name: str, pk: str, entries: Sequence[LogEntry]) -> str:
    data = b64encode(encode_chunk(entries)).decode()
    return (
        f'{{"Put":{{"TableName":{name},"Item":{{"pk":{{"S":"{pk}"}},'
        f'"sk":{{"S":"{keys.stamp_sk(entries[-1].stamp)}"}},"d":{{"B":"{data}"}}}}}}}}'
    )


def _put_state(
    name: str, pk: str, sk: str, data: bytes, stamp: Stamp, seen: Stamp, show: str = ""
) -> str:
    """Put a row state or a mark, if the one it replaces is the one that was merged into."""
    condition = (
        f'"ConditionExpression":"{STANDS_AS_SEEN}",'
        f'"ExpressionAttributeValues":{{":seen":{{"N":"{seen}"}}}}'
        if seen
        else _NEW
    )
    return (
        f'{{"Put":{{"TableName":{name},"Item":{{"pk":{{"S":"{pk}"}},'
        f'"sk":{{"S":{encode_basestring(sk)}}},"c":{{"N":"{stamp}"}},'
        f'"d":{{"B":"{b64encode(data).decode()}"}}}},{condition}{show}}}}}'
    )
