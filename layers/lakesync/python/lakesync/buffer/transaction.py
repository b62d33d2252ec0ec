"""A commit as one ``TransactWriteItems``, written straight into its JSON.

This is the one request that is large and frequent: written by templates it costs a fifth of what
building and encoding nested dictionaries does.
"""

from __future__ import annotations

from base64 import b64encode
from json.encoder import encode_basestring
from typing import TYPE_CHECKING

from lakesync.buffer import keys, pack
from lakesync.buffer.requests import NEVER_WRITTEN, STANDS_AS_SEEN, STANDS_AS_SEEN_AND_CONFIGURED

if TYPE_CHECKING:
    from lakesync.core.clock import Stamp
    from lakesync.ports import Commit, Head, LogEntry

_NEW = f'"ConditionExpression":"{NEVER_WRITTEN}"'


def transact(table: str, commit: Commit) -> tuple[bytes, dict[int, str]]:
    """Give the transaction of a commit, and the shards of those of its items that are heads."""
    name = encode_basestring(table)
    items: list[str] = []
    heads: dict[int, str] = {}
    for shard, part in commit.shards.items():
        heads[len(items)] = shard
        head_pk = encode_basestring(keys.head_pk(commit.gateway, shard))
        items.append(_advance_head(name, head_pk, commit, part.seen, part.entry.logged_bytes))
        items.append(_put_entry(name, keys.log_pk(commit.gateway, shard), part.entry))
        for client, put in part.marks.items():
            pk = keys.mark_pk(commit.gateway, shard)
            data = pack.pack_mark(put.mark)
            items.append(_put_state(name, pk, client, data, commit.stamp, put.seen))
    for (row_table, row_id), row in commit.rows.items():
        pk = keys.row_pk(commit.gateway, row_table, row_id)
        items.append(_put_state(name, pk, row_id, row.state, commit.stamp, row.seen))
    body = f'{{"TransactItems":[{",".join(items)}],"ClientRequestToken":"{commit.token}"}}'
    return body.encode(), heads


def _advance_head(
    name: str, head_pk: str, commit: Commit, seen: Head | None, logged_bytes: int
) -> str:
    condition = NEVER_WRITTEN if seen is None else STANDS_AS_SEEN_AND_CONFIGURED
    seen_value = "" if seen is None else f',":seen":{{"N":"{seen.commit}"}}'
    return (
        f'{{"Update":{{"TableName":{name},'
        f'"Key":{{"pk":{{"S":{head_pk}}},"sk":{{"S":"{keys.HEAD}"}}}},'
        '"UpdateExpression":"SET c = :c, l = :c, v = :v, lb = :lb, o = if_not_exists(o, :c)",'
        f'"ConditionExpression":"{condition}",'
        f'"ExpressionAttributeValues":{{":c":{{"N":"{commit.stamp}"}},'
        f'":v":{{"N":"{commit.config_version}"}},":lb":{{"N":"{logged_bytes}"}}{seen_value}}},'
        '"ReturnValuesOnConditionCheckFailure":"ALL_OLD"}}'
    )


def _put_entry(name: str, pk: str, entry: LogEntry) -> str:
    data = b64encode(pack.deflate(entry.records)).decode()
    rules = b64encode(pack.deflate(entry.rule_rows)).decode() if entry.rule_rows else ""
    rule_rows = f',"r":{{"B":"{rules}"}}' if rules else ""
    return (
        f'{{"Put":{{"TableName":{name},"Item":{{"pk":{{"S":{encode_basestring(pk)}}},'
        f'"sk":{{"S":"{keys.stamp_sk(entry.stamp)}"}},"d":{{"B":"{data}"}},'
        f'"n":{{"N":"{entry.count}"}},"tb":{{"S":"{",".join(sorted(entry.tables))}"}},'
        f'"lb":{{"N":"{entry.logged_bytes}"}},"p":{{"N":"{entry.previous}"}}{rule_rows}}}}}}}'
    )


def _put_state(name: str, pk: str, sk: str, data: bytes, stamp: Stamp, seen: Stamp) -> str:
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
        f'"d":{{"B":"{b64encode(data).decode()}"}}}},{condition}}}}}'
    )
