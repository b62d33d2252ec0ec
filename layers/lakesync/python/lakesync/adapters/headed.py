"""Tables with a head, which lists their files; a write reads the head and puts the next one.

Heads and files may be objects of a bucket, or Iceberg tables. Any write may end in
`lakesync.errors.Contention` without effect: then it is retried.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Protocol

from lakesync.adapters.batches import merged, parts
from lakesync.adapters.database import DeadLetter, Inserted, missing_batch
from lakesync.adapters.row_images import merged_images
from lakesync.adapters.sql.definition import Definition, from_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from lakesync.adapters.database import PlacedDelta, TableBatch
    from lakesync.adapters.objects.heads import Head
    from lakesync.adapters.row_images import RowImages
    from lakesync.core.clock import Stamp
    from lakesync.core.merge import RowState
    from lakesync.core.schema import TableSchema

DELTAS_MAX: Final = 20_000
"""Deltas in one write, unless one commit has more. A larger batch takes several writes."""


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


class HeadedTables(ABC):
    """The tables of one gateway."""

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

    def insert(self, batch: TableBatch) -> Inserted:
        """Take a batch."""
        deltas, rows = 0, 0
        dead: tuple[DeadLetter, ...] = ()
        for part, last in parts(batch, DELTAS_MAX):
            inserted = self._insert_part(batch, part, last)
            deltas, rows = deltas + inserted.deltas, rows + inserted.rows
            dead = inserted.dead_letters
        return Inserted(deltas, rows, dead)

    def _insert_part(self, batch: TableBatch, part: Sequence[PlacedDelta], last: Stamp) -> Inserted:
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

    def move(self, table: str, move: Callable[[Head], Head]) -> None:
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
    """Return the rows of a table that are refused."""
    ordered = sorted(head.refused, key=str.encode)
    return tuple(DeadLetter(table, row_id, head.refused[row_id]) for row_id in ordered)
