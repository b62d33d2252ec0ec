"""Batches as JSON that people read: one envelope, with one delta on each line.

The values are those of the deltas unchanged, so a delta is read back as it was, and its id stays
valid. The form is in ``docs/spec/delivery.md``. Pure.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from lakesync.core.delta import canonical, parse
from lakesync.core.names import staged_column
from lakesync.errors import UpgradeRequired, ValidationFailed
from lakesync.ports import BatchRow

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lakesync.core.clock import Stamp

VERSION: Final = 1
"""Of the envelope; a reader refuses a later one."""


def encode_batch(
    gateway: str, table: str, after: Stamp, last: Stamp, rows: Sequence[BatchRow]
) -> bytes:
    """Return the envelope; the same rows give the same bytes.

    Args:
        gateway: whose.
        table: the table.
        after: the last commit of the table's batch before this one.
        last: the last commit of this one.
        rows: the deltas in commit order.
    """
    head = {
        "version": VERSION,
        "gateway": gateway,
        "table": table,
        "range": {"after": str(after), "last": str(last)},
        "count": len(rows),
    }
    lines = b",\n".join(map(_delta, rows))
    return json.dumps(head).encode()[:-1] + b', "deltas": [\n' + lines + b"\n]}\n"


def decode_batch(body: bytes) -> list[BatchRow]:
    """Return the deltas of an envelope in commit order.

    Raises:
        ValidationFailed: it is damaged, or something else.
        UpgradeRequired: a later release wrote it.
    """
    try:
        envelope = parse(body)
        if envelope["version"] > VERSION:
            raise UpgradeRequired("a batch was written by a later release; deploy that one again")
        rows = [_row(item) for item in envelope["deltas"]]
    except (ValueError, KeyError, TypeError, AttributeError) as exc:
        raise ValidationFailed("it is not the envelope of a batch", field="object") from exc
    if len(rows) != envelope.get("count"):
        raise ValidationFailed("the envelope lacks deltas that it counts", field="object")
    return rows


def is_envelope(body: bytes) -> bool:
    """Return whether an object is an envelope, whole or damaged, and not Parquet."""
    return body[:1] == b"{"


def columns_of(rows: Iterable[BatchRow]) -> dict[str, str]:
    """Return the columns that occur in rows, each with its name in an object of Parquet."""
    names = {name for row in rows for name, _ in row.columns}
    return {name: staged_column(name) for name in sorted(names)}


def _delta(row: BatchRow) -> bytes:
    own = {
        "commit": str(row.commit),
        "ordinal": row.ordinal,
        "op": row.op,
        "rowId": row.row_id,
        "clientId": row.client_id,
        "hlc": str(row.hlc),
        "deltaId": row.delta_id,
    }
    columns = b", ".join(
        b'{"column": ' + json.dumps(name).encode() + b', "value": ' + value + b"}"
        for name, value in row.columns
    )
    text = json.dumps(own, ensure_ascii=False).encode()
    return text[:-1] + b', "columns": [' + columns + b"]}"


def _row(item: Any) -> BatchRow:
    return BatchRow(
        int(item["commit"]),
        item["ordinal"],
        item["op"],
        item["rowId"],
        item["clientId"],
        int(item["hlc"]),
        item["deltaId"],
        tuple([(each["column"], canonical(each["value"])) for each in item["columns"]]),
    )
