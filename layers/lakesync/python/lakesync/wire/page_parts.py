"""The messages inside a ``SyncResponse``, and the stamps of any message."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakesync.core.clock import STAMP_MAX
from lakesync.core.messages import Progress, Resync
from lakesync.errors import ValidationFailed
from lakesync.wire import lakesync_pb2 as pb

if TYPE_CHECKING:
    from lakesync.core.clock import Stamp


def stamp_in(value: int, field: str) -> Stamp:
    """Return a stamp.

    Raises:
        ValidationFailed: it is not a valid stamp.
    """
    if value > STAMP_MAX:
        raise ValidationFailed(f"{field} must be at most 2^63-1", field=field)
    return value


def write_resync(message: pb.Resync, resync: Resync) -> None:
    """Write the tables that are read again."""
    omitted = {table: pb.Columns(names=names) for table, names in resync.omitted.items()}
    message.MergeFrom(pb.Resync(tables=resync.tables, named=resync.named, omitted=omitted))
    message.others = resync.named is not None
    message.tombstone_horizons.update(resync.tombstone_horizons)


def resync_of(message: pb.Resync) -> Resync:
    """Read the tables that are read again; raises as `stamp_in`."""
    named = tuple(message.named) if message.others else None
    known = message.tombstone_horizons.items()
    horizons = {table: stamp_in(at, "tombstoneHorizons") for table, at in known}
    omitted = {table: tuple(columns.names) for table, columns in message.omitted.items()}
    return Resync(tuple(message.tables), named, horizons, omitted)


def progress_of(message: pb.SyncResponse) -> Progress | None:
    """Read how much of a checkpoint was read; None if the message does not say."""
    of = message.progress
    return Progress(of.read, of.total) if message.HasField("progress") else None
