"""The lake in memory, with a process that can die between any two steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lakesync.errors import NotFound

if TYPE_CHECKING:
    from lakesync.ports import Buffer


class Killed(BaseException):
    """The process died here; nothing that handles errors may notice."""


class Objects:
    """`lakesync.ports.ObjectStore` in a dictionary, which remembers every write."""

    def __init__(self) -> None:
        self.bodies: dict[str, bytes] = {}
        self.written: list[tuple[str, bytes]] = []

    def put_object(self, key: str, body: bytes, content_type: str) -> None:
        assert content_type
        self.bodies[key] = body
        self.written.append((key, body))

    def get_object(self, key: str) -> bytes:
        if key not in self.bodies:
            raise NotFound(f"there is no object {key}")
        return self.bodies[key]

    def get_range(self, key: str, start: int, size: int) -> bytes:
        body = self.get_object(key)
        if start >= len(body):
            raise NotFound(f"the object {key} ends before {start}")
        return body[start : start + size]

    def list_objects(self, prefix: str) -> list[str]:
        return sorted(key for key in self.bodies if key.startswith(prefix))

    def delete_object(self, key: str) -> None:
        self.bodies.pop(key, None)


class Messages:
    """`lakesync.ports.Queue` in a list."""

    def __init__(self) -> None:
        self.sent: list[str] = []

    def send(self, body: str) -> None:
        self.sent.append(body)


STEPS = (
    "save_flush_state",
    "save_flushed_table",
    "note_flushed",
    "put_object",
    "delete_object",
    "send",
    "raise_horizon",
    "drop_entries",
    "empty_head",
    "save_config",
    "forget_row",
    "revoke",
    "remove_items",
    "remove",
    "save_destinations",
    "save_delivery_state",
    "insert_deltas",
    "put_rows",
    "restart",
)
"""The writes of a flush, a trim and a deletion, between which a process may die."""


class Mortal:
    """Kills its process before or after the n-th write that goes through it or its siblings."""

    def __init__(self, port: Any, life: Life) -> None:
        self._port = port
        self._life = life

    def __getattr__(self, name: str) -> Any:
        act = getattr(self._port, name)
        return self._life.step(act) if name in STEPS else act


class Life:
    """How many writes a process makes before it dies."""

    def __init__(self, writes: float, *, last_happens: bool = False) -> None:
        self._left = writes
        self._last_happens = last_happens

    def of(self, port: Any) -> Any:
        return Mortal(port, self)

    def step(self, act: Any) -> Any:
        """Return a write, or death before it, or right after it."""

        def call(*arguments: Any, **named: Any) -> Any:
            self._left -= 1
            if self._left < 0:
                if self._last_happens:
                    act(*arguments, **named)
                raise Killed
            return act(*arguments, **named)

        return call


def unflushed(buffer: Buffer, gateway: str) -> int:
    """Return how many bytes the heads say wait to be flushed."""
    heads = buffer.heads(gateway)
    return sum(head.logged_bytes - head.flushed_bytes for head in heads.values())
