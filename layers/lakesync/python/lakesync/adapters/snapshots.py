"""The interface of sources whose tables, written by others, are read by snapshots."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ALL: Final = "all"
"""All rows of a snapshot."""
ADDED: Final = "added"
"""A snapshot that added rows, and did nothing else."""
SAME: Final = "same"
"""A snapshot that wrote the same rows otherwise, as compaction does."""
CHANGED: Final = "changed"
"""Anything from one snapshot to another."""
GONE: Final = "gone"
"""What was brought, and is not in a snapshot."""


class Step(NamedTuple):
    """From one snapshot to another."""

    before: int
    """Its number; 0 for none."""
    after: int
    at_ms: int
    """When the later one was committed."""
    kind: str


class NamedColumn(NamedTuple):
    """A column, with its type as LakeSync has types."""

    name: str
    type: str
    nullable: bool


class SnapshotTable(Protocol):
    """A table, as its snapshots tell it."""

    def columns(self) -> Sequence[NamedColumn]:
        """Return its columns, as they are now."""
        ...

    def steps(self, since: int) -> Sequence[Step]:
        """Return the steps from a snapshot to the newest, in order; 0 for all rows of the newest.

        Raises:
            CursorExpired: that snapshot no longer exists.
        """
        ...

    def rows(
        self, step: Step, names: Sequence[str], *, left: bool = False, skipped: int = 0
    ) -> Iterator[tuple[Any, ...]]:
        """Return rows of the files that a step adds; or, with ``left``, that it removes.

        Args:
            step: the step.
            names: the columns.
            left: whether to read the removed files.
            skipped: how many of the first rows are left out.

        Raises:
            CursorExpired: a snapshot, or a file of it, no longer exists.
        """
        ...

    def count(self, step: Step, *, left: bool = False) -> int:
        """Count those rows, deleted ones of their files too."""
        ...


@runtime_checkable
class HasSnapshots(Protocol):
    """A database in which others may have tables that are told by snapshots."""

    def snapshots_of(self, name: str) -> SnapshotTable:
        """Return a table by its whole name; it is looked at when it is asked."""
        ...
