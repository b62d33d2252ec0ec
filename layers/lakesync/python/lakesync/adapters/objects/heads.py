"""Heads: the list of files that make up a table; each version is an object, written once.

Rules of this module
    1. A write puts its files first and the next head last. Only one writer can make a version, so
       what was read under a head is as it was when the next one stands.
    2. Files and heads never change. What a head does not name is removed behind it: files of its
       version or an older one, which nobody can name any more.
    3. The names of old heads stay for a while: a writer that slept finds that his version is taken.
       What they said goes, as it names rows.

Laws P1-P3: ``docs/spec/databases.md``.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from lakesync.errors import AdapterTimedOut, Contention, NotFound

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lakesync.adapters.lake.adapter import LakeAdapter
    from lakesync.core.clock import Stamp

HEADS_KEPT: Final = 200
"""Names of a table's heads that stay: so many writes may pass while a writer sleeps."""
SWEEP_VERSIONS: Final = 16
"""After so many writes what killed writers left is looked for."""
_LAST: Final = 10**12 - 1
_DIGITS: Final = 12
_READS_MAX: Final = 3
_EMPTY: Final = b"{}"
"""What is left of a head that is not in force any more."""
_JSON: Final = "application/json"


@dataclass(frozen=True, slots=True)
class RowFile:
    """Some rows, in the order of their ids' bytes."""

    key: str
    first: str
    last: str
    rows: int
    hidden: bool = False
    """Whether its rows are none that a reader is to see: deleted ones, and refused ones."""


@dataclass(frozen=True, slots=True)
class HistoryFile:
    """Some commits."""

    key: str
    last: Stamp


@dataclass(frozen=True, slots=True)
class Head:
    """What a table consists of."""

    version: int = 0
    """0 for a table that is not there."""
    mark: Stamp = 0
    forgotten: Stamp = 0
    definition: str = ""
    files: tuple[RowFile, ...] = ()
    history: tuple[HistoryFile, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)
    """Why, by row id."""

    def keys(self) -> set[str]:
        """Return the keys of its files."""
        return {one.key for one in self.files} | {one.key for one in self.history}


class Heads:
    """The heads of one table.

    Args:
        objects: where they are.
        prefix: what the keys of the table's objects begin with.
    """

    def __init__(self, objects: LakeAdapter, prefix: str) -> None:
        self._objects = objects
        self._prefix = prefix
        self._known = ("", Head())

    def newest(self) -> Head:
        """Return the newest head."""
        for _ in range(_READS_MAX):
            page = self._objects.list_page(f"{self._prefix}heads/", keys_max=1)
            if not page.objects:
                return Head()
            key = page.objects[0].key
            try:
                body = b"" if key == self._known[0] else self._objects.get_object(key)
            except NotFound:  # others wrote so often meanwhile that it is gone
                continue
            if body and body != _EMPTY:
                self._known = (key, _decoded(body))
            if body != _EMPTY:
                return self._known[1]
        raise AdapterTimedOut("others keep writing the same table; repeat the operation")

    def follow(self, head: Head, before: Head) -> None:
        """Put the next head, and remove what it no longer names.

        Raises:
            Contention: another writer was first; nothing was done.
        """
        key = self._key(head.version)
        if not self._objects.put_new_object(key, _encoded(head), _JSON):
            raise Contention("another writer was first")
        self._known = (key, head)
        if before.version:
            self._objects.put_object(self._key(before.version), _EMPTY, _JSON)
        self._objects.delete_objects(before.keys() - head.keys())
        if head.version % SWEEP_VERSIONS == 0:
            self._sweep(head)

    def _sweep(self, head: Head) -> None:
        """Remove files that killed writers left, and the oldest heads."""
        named = head.keys()
        for folder in ("rows", "hidden", "history"):
            keys = self._objects.list_objects(f"{self._prefix}{folder}/")
            self._objects.delete_objects(
                key for key in keys if key not in named and version_of(key) <= head.version
            )
        heads = self._objects.list_objects(f"{self._prefix}heads/")
        self._objects.delete_objects(heads[HEADS_KEPT:])

    def _key(self, version: int) -> str:
        """Return a head's key: the newest is the first in order."""
        return f"{self._prefix}heads/{_LAST - version:0{_DIGITS}}.json"


def file_name(version: int, token: str) -> str:
    """Return a name for a file of a version's."""
    return f"{version:0{_DIGITS}}-{token}.json.gz"


def version_of(key: str) -> int:
    """Return the version for which a file was written."""
    return int(key.rpartition("/")[2][:_DIGITS])


def _encoded(head: Head) -> bytes:
    body = asdict(head) | {"refused": dict(head.refused)}
    return json.dumps(body, ensure_ascii=True, separators=(",", ":")).encode()


def _decoded(body: bytes) -> Head:
    read: dict[str, Any] = json.loads(body)
    files = tuple(RowFile(**one) for one in read.pop("files"))
    history = tuple(HistoryFile(**one) for one in read.pop("history"))
    return Head(**read, files=files, history=history)
