"""Counts the stored copies of a row's current and former values, which an erasure must remove.

Every store that can contain the row is read in full: the log from its beginning, all chunks of
checkpoints, all batches, what connectors keep, all snapshots of the lake. It takes the operator's
own credentials.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lakesync.checkpoint import manifest as names
from lakesync.connectors.erasing import kept_of
from lakesync.core.delta import Op
from lakesync.core.names import CHANGES_SUFFIX
from lakesync.errors import NotFound
from lakesync.wire.records import decode_records
from lakesync.wire.row_state import decode_row_state

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lakesync.cli.lake import Lake
    from lakesync.ports import Buffer, ObjectStore, RowKey

_SLICE_DELTAS_MAX: Final = 10_000


def copies(
    gateway: str, key: RowKey, buffer: Buffer, objects: ObjectStore, lake: Lake | None
) -> dict[str, int]:
    """Count the objects and items with values of a row, by store; deletions have none.

    Args:
        gateway: whose.
        key: the row.
        buffer: where it is stored.
        objects: the lake's bucket.
        lake: its tables; None to leave them out.

    Raises:
        LakeSyncError: a store cannot be read now.
    """
    state = buffer.rows(gateway, [key]).get(key)
    counts = {
        "row": int(state is not None and bool(decode_row_state(state.state).columns)),
        "log": sum(_in_run(run, key) for run in logged_runs(gateway, buffer)),
        "checkpoints": sum(
            _in_run(run, key) for run in checkpointed_runs(objects, gateway, key[0])
        ),
        "batches": sum(_in_batch(body, key) for body in _batches(objects, gateway, key[0])),
        "connectors": kept_of(objects, gateway, key),
    }
    if lake is not None:
        counts["lake"] = lake.copies(key[0], key[1])
        counts["lake changes"] = lake.copies(key[0] + CHANGES_SUFFIX, key[1])
    return counts


def logged_runs(gateway: str, buffer: Buffer) -> Iterator[bytes]:
    """Yield every run in the log and in heads, trimmed or not."""
    for lane, head in buffer.all_heads(gateway).items():
        yield from (entry.records for entry in head.recent)
        after = 0
        while after < head.stored_until:
            part = buffer.entries(gateway, lane, after, head.stored_until, _SLICE_DELTAS_MAX)
            yield from (entry.records for entry in part.entries)
            after = part.until


def checkpointed_runs(objects: ObjectStore, gateway: str, table: str) -> Iterator[bytes]:
    """Yield every run of a table in chunks, whether a manifest names them or not."""
    for key in objects.list_objects(names.chunks_prefix(gateway)):
        if key.rpartition("/")[2].rsplit("-", 2)[0] != table:
            continue
        body = _body(objects, key)
        at = 0
        while at < len(body):
            begin = at + names.FRAME_HEAD_BYTES
            at = begin + int.from_bytes(body[at:begin], "big")
            yield body[begin:at]


def _batches(objects: ObjectStore, gateway: str, table: str) -> Iterator[bytes]:
    for key in objects.list_objects(f"staging/{gateway}/{table}/"):
        yield _body(objects, key)


def _body(objects: ObjectStore, key: str) -> bytes:
    try:
        return objects.get_object(key)
    except NotFound:
        return b""  # removed since it was listed


def _in_run(run: bytes, key: RowKey) -> int:
    return sum(
        (delta.table, delta.row_id) == key and delta.op is not Op.DELETE
        for delta in decode_records(run)
    )


def _in_batch(body: bytes, key: RowKey) -> int:
    if not body:
        return 0
    from lakesync.adapters.lake.parquet import batch_table

    rows = batch_table(body).select(["_row_id", "_op"]).to_pylist()
    return sum(row["_row_id"] == key[1] and row["_op"] != Op.DELETE.name for row in rows)
