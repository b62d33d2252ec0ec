"""A database of files: a table's head lists them; a write puts the next head.

Heads and files may be objects of a bucket, or Iceberg tables. Any write may end in
`lakesync.errors.Contention` without effect: then it is retried.

Rules of heads in a bucket
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
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from lakesync.adapters.database import DeadLetter, Inserted
from lakesync.adapters.ledger_database import (
    LedgerDatabase,
    check_history,
    deltas_behind,
    merged,
    merged_images,
    missing_batch,
)
from lakesync.adapters.sql.ledger import Definition, from_json
from lakesync.errors import AdapterTimedOut, Contention, LakeSyncError, NotFound
from lakesync.result import Err, Ok

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from lakesync.adapters.database import (
        PlacedDelta,
        Position,
        RowImages,
        TableBatch,
    )
    from lakesync.adapters.lake.adapter import LakeAdapter
    from lakesync.core.clock import Stamp
    from lakesync.core.merge import RowState
    from lakesync.core.schema import TableSchema
    from lakesync.result import Result

# --- heads ----------------------------------------------------------------------------------------


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
        return {one.key for one in self.files} | {one.key for one in self.history}


class Heads:
    """The heads of one table.

    Args:
        prefix: what the keys of the table's objects begin with.
    """

    def __init__(self, objects: LakeAdapter, prefix: str) -> None:
        self._objects = objects
        self._prefix = prefix
        self._known = ("", Head())

    def newest(self) -> Head:
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
    return f"{version:0{_DIGITS}}-{token}.json.gz"


def version_of(key: str) -> int:
    return int(key.rpartition("/")[2][:_DIGITS])


def _encoded(head: Head) -> bytes:
    body = asdict(head) | {"refused": dict(head.refused)}
    return json.dumps(body, ensure_ascii=True, separators=(",", ":")).encode()


def _decoded(body: bytes) -> Head:
    read: dict[str, Any] = json.loads(body)
    files = tuple(RowFile(**one) for one in read.pop("files"))
    history = tuple(HistoryFile(**one) for one in read.pop("history"))
    return Head(**read, files=files, history=history)


# --- tables with heads ----------------------------------------------------------------------------


class TableHeads(Protocol):
    """The heads of one table."""

    def newest(self) -> Head:
        """Return the newest head."""
        ...

    def follow(self, head: Head, before: Head) -> None:
        """Put the next head.

        Raises:
            Contention: another writer was first; nothing was done.
        """
        ...


class TableFiles(Protocol):
    """The rows and the history of one table, as its head names them."""

    def states(self, head: Head, row_ids: Sequence[str]) -> dict[str, RowState]:
        """Return the states of rows; those that are not there are left out."""
        ...

    def states_after(self, head: Head, row_id: str, count: int) -> dict[str, RowState]:
        """Return the states of a table's rows behind a row id, in the order of its bytes."""
        ...

    def commits(self, head: Head, after: Stamp) -> list[tuple[Stamp, bytes]]:
        """Return the next commits behind a stamp with their records, none at the end."""
        ...

    def written(
        self,
        head: Head,
        definition: Definition,
        deltas: Sequence[PlacedDelta],
        states: Mapping[str, RowState | None],
        *,
        anew: bool = False,
    ) -> Head:
        """Put the files of the next head, and give that head; no reader sees them before it is put.

        Args:
            head: the head under which the states were read.
            definition: the table's columns.
            deltas: whole commits behind the mark.
            states: of rows that changed, and of rows that were refused; None removes a row without
                a trace.
            anew: whether every row is written anew.

        Raises:
            ConstraintViolated: too many rows are refused.
        """
        ...

    def count(self, head: Head) -> int:
        """Count the rows, those that no reader is to see too."""
        ...


class FileTables(ABC):
    """The tables of one gateway; `lakesync.adapters.ledger_database.TableLedger`."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[TableHeads, TableFiles]] = {}

    @abstractmethod
    def opened(self, table: str) -> tuple[TableHeads, TableFiles]:
        """Return the heads and the files of a table, be it there or not."""

    @abstractmethod
    def names(self) -> Iterable[str]:
        """Return the names of the tables that there may be."""

    @abstractmethod
    def begin(self, table: str) -> None:
        """Have a table named that is not there yet. Safe to repeat."""

    def forget(self) -> None:
        """Forget what was read."""
        self._known.clear()

    def head(self, table: str) -> Head:
        """Return what a table consists of now."""
        return self._of(table)[0].newest()

    def files(self, table: str) -> TableFiles:
        """Return the files of a table."""
        return self._of(table)[1]

    def schemas(self) -> dict[str, TableSchema | None]:
        """Return the tables that there are, with their newest schemas."""
        heads = {name: self.head(name) for name in self.names()}
        return {name: definition_of(name, one).schema for name, one in heads.items() if one.version}

    def insert_part(self, batch: TableBatch, part: Sequence[PlacedDelta], last: Stamp) -> Inserted:
        table = batch.table
        head = self.head(table)
        if head.mark >= last:
            return Inserted(dead_letters=letters(table, head))
        if head.mark < batch.after:
            raise missing_batch(batch, head.mark)
        fresh = [placed for placed in part if placed.position.commit > head.mark]
        stored, again = self._stored(table, head, (placed.delta.row_id for placed in fresh))
        changed = merged(fresh, lambda _: stored)
        written = {name for placed in fresh for name, _ in placed.delta.columns}
        definition = definition_of(table, head).evolved(batch.schema, written)
        moved = replace(head, mark=last)
        head = self._follow(table, head, moved, definition, fresh, {**again, **changed})
        return Inserted(len(fresh), len(changed), letters(table, head))

    def put(self, images: RowImages) -> Inserted:
        """Merge rows, and remove others."""
        table = images.table
        head = self.head(table)
        if head.mark >= images.last:
            return Inserted(dead_letters=letters(table, head))
        if head.mark < images.after:
            raise missing_batch(images, head.mark)
        stored, again = self._stored(table, head, images.rows)
        changed, gone = merged_images(images, stored)
        written = {name for state in images.rows.values() if state for name in state.columns}
        definition = definition_of(table, head).evolved(images.schema, written)
        moved = head
        if images.is_last:
            moved = forgetting(replace(head, mark=images.last), images.last)
        states = {**again, **changed, **dict.fromkeys(gone)}
        head = self._follow(table, head, moved, definition, (), states)
        return Inserted(0, len(changed) + len(gone), letters(table, head))

    def _stored(
        self, table: str, head: Head, row_ids: Iterable[str]
    ) -> tuple[dict[str, RowState], dict[str, RowState]]:
        """Return the current states of rows, and of the refused ones, which are tried again."""
        stored = self.files(table).states(head, [*row_ids, *head.refused])
        return stored, {row_id: stored[row_id] for row_id in head.refused if row_id in stored}

    def define(self, schema: TableSchema) -> None:
        """Note a table's columns."""
        head = self.head(schema.table)
        wanted = definition_of(schema.table, head).evolved(schema, ())
        if wanted.to_json() != head.definition:
            self._follow(schema.table, head, head, wanted, (), {})

    def mark(self, table: str) -> Stamp:
        return self.head(table).mark

    def deltas(self, table: str, since: Position, deltas_max: int) -> Iterator[PlacedDelta]:
        head = self.head(table)
        check_history(table, since, head.forgotten)
        return deltas_behind(since, deltas_max, partial(self.files(table).commits, head))

    def states(self, table: str, row_ids: Sequence[str]) -> dict[str, RowState]:
        return self.files(table).states(self.head(table), row_ids)

    def states_after(self, table: str, row_id: str, count: int) -> dict[str, RowState]:
        return self.files(table).states_after(self.head(table), row_id, count)

    def dead_letters(self, table: str) -> tuple[DeadLetter, ...]:
        return letters(table, self.head(table))

    def schema(self, table: str) -> TableSchema | None:
        return definition_of(table, self.head(table)).schema

    def forget_commits(self, table: str, until: Stamp) -> None:
        def forgotten(head: Head) -> Head:
            return forgetting(head, max(head.forgotten, min(until, head.mark)))

        self._move(table, forgotten)

    def begin_anew(self, table: str) -> None:
        def begun(head: Head) -> Head:
            return replace(forgetting(head, max(head.forgotten, head.mark)), mark=0)

        self._move(table, begun)

    def _move(self, table: str, move: Callable[[Head], Head]) -> None:
        """Change how far a table has come, or what of its history is forgotten."""
        head = self.head(table)
        moved = move(head)
        if moved != head:
            self._follow(table, head, moved, definition_of(table, head), (), {})

    def rewrite(self, table: str) -> int:
        """Write every row anew; returns how many there are."""
        head = self.head(table)
        self._follow(table, head, head, definition_of(table, head), (), {}, anew=True)
        return self.files(table).count(head)

    def retry(self, table: str) -> Head:
        """Try the refused rows again; returns the table's next head."""
        head = self.head(table)
        if not head.refused:
            return head
        _, again = self._stored(table, head, ())
        return self._follow(table, head, head, definition_of(table, head), (), again)

    def _follow(
        self,
        table: str,
        before: Head,
        moved: Head,
        definition: Definition,
        deltas: Sequence[PlacedDelta],
        states: Mapping[str, RowState | None],
        *,
        anew: bool = False,
    ) -> Head:
        """Write the next head of a table: its mark, and the changed rows."""
        if not before.version:
            self.begin(table)
        old = definition_of(table, before)
        anew = anew or not definition.reads_as(old)
        anew = anew or any(definition.columns[name] != kind for name, kind in old.columns.items())
        head = self.files(table).written(moved, definition, deltas, states, anew=anew)
        self._of(table)[0].follow(head, before)
        return head

    def _of(self, table: str) -> tuple[TableHeads, TableFiles]:
        if table not in self._known:
            self._known[table] = self.opened(table)
        return self._known[table]


def definition_of(table: str, head: Head) -> Definition:
    """Return the columns of a table, and how its rows are read."""
    return from_json(table, head.definition) if head.definition else Definition(table)


def forgetting(head: Head, until: Stamp) -> Head:
    """Return a head without the history up to a commit."""
    left = tuple(one for one in head.history if one.last > until)
    return replace(head, forgotten=until, history=left)


def letters(table: str, head: Head) -> tuple[DeadLetter, ...]:
    ordered = sorted(head.refused, key=str.encode)
    return tuple(DeadLetter(table, row_id, head.refused[row_id]) for row_id in ordered)


# --- the database ---------------------------------------------------------------------------------


T = TypeVar("T")

ATTEMPTS_MAX: Final = 5
"""How often something is done again because another writer was first."""


class FileDatabase(LedgerDatabase[FileTables]):
    """One gateway's deltas and rows. Not for several threads at once."""

    def __init__(self, tables: FileTables) -> None:
        self._tables = tables

    def ensure_schema(self, schema: TableSchema) -> Result[None, LakeSyncError]:
        return self._answer(lambda: self._tables.define(schema))

    def close(self) -> None:
        self._tables.forget()

    def _prepare(self, table: str, schema: TableSchema | None, written: Iterable[str]) -> None:
        """Do nothing: columns are noted with the head that has the rows."""

    def _insert_part(self, batch: TableBatch, part: Sequence[PlacedDelta], last: Stamp) -> Inserted:
        return self._tables.insert_part(batch, part, last)

    def _put_rows(self, images: RowImages) -> Inserted:
        return self._tables.put(images)

    def _rewrite(self, table: str) -> int:
        return self._tables.rewrite(table)

    def _retry(self, table: str) -> tuple[DeadLetter, ...]:
        return letters(table, self._tables.retry(table))

    def _read(self, work: Callable[[FileTables], T]) -> Result[T, LakeSyncError]:
        return self._answer(lambda: work(self._tables))

    def _answer(self, work: Callable[[], T]) -> Result[T, LakeSyncError]:
        """Do something again where another writer came between: he wrote, or removed a file."""
        last = ""
        for _ in range(ATTEMPTS_MAX):
            try:
                return _answered(work)
            except (Contention, NotFound) as error:
                last = error.message
        return Err(
            AdapterTimedOut(
                f"in {ATTEMPTS_MAX} attempts no write was known to succeed; repeat the operation; "
                f"the last error: {last}"
            )
        )


def _answered(work: Callable[[], T]) -> Result[T, LakeSyncError]:
    try:
        return Ok(work())
    except (Contention, NotFound):
        raise
    except LakeSyncError as error:
        return Err(error)
