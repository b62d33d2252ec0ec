"""Objects, queues and batches: how data leaves the buffer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import (
    TYPE_CHECKING,
    Protocol,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lakesync.core.clock import Stamp


class ObjectStore(Protocol):
    """Objects under keys: S3, or a dictionary in tests."""

    def put_object(self, key: str, body: bytes, content_type: str) -> None:
        """Store an object; storing the same again changes nothing."""
        ...

    def get_object(self, key: str) -> bytes:
        """Return an object's bytes.

        Raises:
            lakesync.errors.NotFound: it does not exist.
        """
        ...

    def get_range(self, key: str, start: int, size: int) -> bytes:
        """Return ``size`` bytes of an object from an offset on, fewer if it ends before.

        Raises:
            lakesync.errors.NotFound: the object does not exist, or ends before the offset.
        """
        ...

    def list_objects(self, prefix: str) -> list[str]:
        """Return the keys under a prefix, in order."""
        ...

    def delete_object(self, key: str) -> None:
        """Remove an object; idempotent."""
        ...


class Queue(Protocol):
    """Messages to the next stage, delivered at least once."""

    def send(self, body: str) -> None:
        """Send a message; when this returns it is durable."""
        ...


class BatchEncoder(Protocol):
    """One table's deltas as the bytes of one object."""

    def encode(self, rows: Sequence[BatchRow], columns: Mapping[str, str]) -> bytes:
        """Return the object; the same rows give the same bytes.

        Args:
            rows: the deltas in commit order.
            columns: the name in the object of each column that occurs.
        """
        ...


@dataclass(frozen=True, slots=True)
class BatchRow:
    """One delta in a batch for the lake."""

    commit: Stamp
    ordinal: int
    """Its place in the commit."""
    op: str
    row_id: str
    client_id: str
    hlc: Stamp
    delta_id: str
    columns: tuple[tuple[str, bytes], ...]
