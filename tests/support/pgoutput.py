"""Writes messages of `pgoutput`: what the decoder reads, and what a server would say."""

from __future__ import annotations

from struct import pack
from typing import TYPE_CHECKING

from lakesync.systems.postgres.pgoutput import (
    Begin,
    Commit,
    Delete,
    Insert,
    Message,
    Relation,
    Truncate,
    Update,
)
from lakesync.systems.sql.captured_tables import UNCHANGED

if TYPE_CHECKING:
    from lakesync.systems.sql.captured_tables import Row

EPOCH_US = 946_684_800_000_000


def encode(message: Message) -> bytes:
    if isinstance(message, Begin):
        return b"B" + pack(">QqI", message.commit_lsn, message.commit_us - EPOCH_US, message.xid)
    if isinstance(message, Commit):
        time = message.commit_us - EPOCH_US
        return b"C" + pack(">BQQq", 0, message.commit_lsn, message.end_lsn, time)
    if isinstance(message, Relation):
        return _relation(message)
    if isinstance(message, Insert):
        return b"I" + pack(">I", message.table_id) + b"N" + _row(message.new)
    if isinstance(message, Update):
        old = b"" if message.old is None else _old(message.old, whole=message.old_is_whole)
        return b"U" + pack(">I", message.table_id) + old + b"N" + _row(message.new)
    if isinstance(message, Delete):
        old = _old(message.old, whole=message.old_is_whole)
        return b"D" + pack(">I", message.table_id) + old
    if isinstance(message, Truncate):
        ids = message.table_ids
        return b"T" + pack(f">IB{len(ids)}I", len(ids), 0, *ids)
    return {"origin": b"O\0\0\0\0\0\0\0\1name\0", "type": b"Y\0\0\0\1s\0t\0", "message": b"M"}[
        message.kind
    ]


def _relation(message: Relation) -> bytes:
    columns = b"".join(
        pack(">B", each.in_identity) + each.name.encode() + b"\0"
        + pack(">Ii", each.type_id, each.modifier)
        for each in message.columns
    )  # fmt: skip
    names = message.schema.encode() + b"\0" + message.name.encode() + b"\0"
    head = b"R" + pack(">I", message.table_id) + names
    return head + message.identity.encode() + pack(">H", len(message.columns)) + columns


def _old(row: Row, *, whole: bool) -> bytes:
    return (b"O" if whole else b"K") + _row(row)


def _row(row: Row) -> bytes:
    parts = [pack(">H", len(row))]
    for value in row:
        if value is None:
            parts.append(b"n")
        elif value is UNCHANGED:
            parts.append(b"u")
        else:
            parts.append(b"t" + pack(">i", len(value)) + value)
    return b"".join(parts)
