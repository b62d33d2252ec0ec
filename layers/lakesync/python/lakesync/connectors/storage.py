"""A connector's storage for what is too large for its cursor: objects under its own prefix."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from lakesync.adapters.lake.memory import MemoryAdapter
from lakesync.errors import NotFound

if TYPE_CHECKING:
    from lakesync.ports import ObjectStore

PREFIX: Final = "connectors"
"""The prefix of all storage in the bucket: a gateway's is below ``connectors/<gateway>/``."""


class Brought(NamedTuple):
    """Some rows that a connector brought to a table of the gateway, and that still exist."""

    row_ids: tuple[str, ...]
    place: str
    """Where to go on; empty once there are no more."""


class TellsBrought(Protocol):
    """Tells what a connector brought."""

    def __call__(self, table: str, place: str) -> Brought:
        """Return some rows of a table of the gateway, from a place on; empty for the first."""
        ...


def _nothing_brought(table: str, place: str) -> Brought:  # noqa: ARG001 - as `TellsBrought`
    """Return no rows: where there is no gateway."""
    return Brought((), "")


class Storage:
    """JSON objects of one connector. Writes are whole; reads give the last write.

    Attributes:
        gateway: the gateway's id.
        name: the connector's.
        brought: tells which rows the gateway has from it.
        is_scratch: it is forgotten after a question about what is not registered.
    """

    def __init__(
        self,
        objects: ObjectStore,
        gateway: str,
        name: str,
        brought: TellsBrought = _nothing_brought,
    ) -> None:
        self.gateway = gateway
        self.name = name
        self.brought = brought
        self.is_scratch = False
        self._objects = objects
        self._prefix = f"{PREFIX}/{gateway}/{name}/"

    @classmethod
    def scratch(cls, gateway: str, name: str) -> Storage:
        """Return one in memory, for a question about what is not registered."""
        made = cls(MemoryAdapter(), gateway, name)
        made.is_scratch = True
        return made

    def read(self, *path: str) -> Any:
        """Return what was written at a path; None if nothing was."""
        try:
            return json.loads(self._objects.get_object(self._key(path)))
        except NotFound:
            return None

    def write(self, value: object, *path: str) -> None:
        """Write a JSON value at a path. Safe to repeat."""
        body = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
        self._objects.put_object(self._key(path), body, "application/json")

    def remove(self, *path: str) -> None:
        """Remove what was written at a path. Safe to repeat."""
        self._objects.delete_object(self._key(path))

    def names(self, *path: str) -> list[str]:
        """Return the last parts of all paths below one, in order."""
        prefix = f"{self._prefix}{'/'.join(path)}/"
        return [key.rpartition("/")[2] for key in self._objects.list_objects(prefix)]

    def paths(self) -> list[tuple[str, ...]]:
        """Return all paths at which something is written, in order."""
        keys = self._objects.list_objects(self._prefix)
        return [tuple(key.removeprefix(self._prefix).split("/")) for key in keys]

    def clear(self, keeping: str = "") -> None:
        """Remove everything, except one folder if it is named. Safe to repeat, and to kill."""
        for key in self._objects.list_objects(self._prefix):
            if not keeping or not key.startswith(f"{self._prefix}{keeping}/"):
                self._objects.delete_object(key)

    def _key(self, path: tuple[str, ...]) -> str:
        return self._prefix + "/".join(path)


def digest(*parts: str) -> str:
    """Return a name for any text: enough hexadecimal digits to avoid collisions."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]
