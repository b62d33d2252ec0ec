"""What databases of a gateway's rows share: the operations over a ledger, merged batches, pages.

A ledger has of each table its mark, its history, its rows with the stamps of their values, and its
definition. What a database is asked is answered by reading the ledger. A batch is written part by
part: a part whose commits are in the ledger already is skipped, so any batch may be repeated.

Laws P1-P3: ``docs/spec/databases.md``.
"""

from __future__ import annotations

import gc
from abc import ABC, abstractmethod
from contextlib import contextmanager
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, Self, TypeVar

from lakesync.adapters.database import (
    ORDINAL_END,
    DeltaPage,
    Inserted,
    PlacedDelta,
    Position,
    RowPage,
)
from lakesync.core.clock import stamp
from lakesync.core.delta import parse
from lakesync.core.merge import EMPTY, as_read, fold, join, newer_than, view
from lakesync.errors import Conflict, ConstraintViolated, CursorExpired, NotFound
from lakesync.result import Err
from lakesync.wire.records import decode_records, encode_records

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from lakesync.adapters.database import DeadLetter, RowImages, TableBatch
    from lakesync.core.clock import Stamp
    from lakesync.core.merge import RowState
    from lakesync.core.schema import TableSchema
    from lakesync.errors import LakeSyncError
    from lakesync.result import Result

# --- the operations -------------------------------------------------------------------------------


class TableLedger(Protocol):
    """The ledger of one gateway. A table that does not exist reads as empty."""

    def mark(self, table: str) -> Stamp:
        """Return the commit up to which batches were applied."""
        ...

    def deltas(self, table: str, since: Position, deltas_max: int) -> Iterable[PlacedDelta]:
        """Return deltas behind a position, in order: at least ``deltas_max``, or all of them.

        Raises:
            CursorExpired: the history does not reach back so far.
        """
        ...

    def states(self, table: str, row_ids: Sequence[str]) -> Mapping[str, RowState]:
        """Return the states of those rows that exist."""
        ...

    def states_after(self, table: str, row_id: str, count: int) -> Mapping[str, RowState]:
        """Return the states of a table's rows behind a row id, in the order of its bytes."""
        ...

    def dead_letters(self, table: str) -> tuple[DeadLetter, ...]:
        """Return the rows that the destination refuses."""
        ...

    def schema(self, table: str) -> TableSchema | None:
        """Return the newest schema of a table."""
        ...

    def schemas(self) -> Mapping[str, TableSchema | None]:
        """Return the newest schema of each table."""
        ...

    def forget_commits(self, table: str, until: Stamp) -> None:
        """Remove commits from the history, and record the last one removed."""
        ...

    def begin_anew(self, table: str) -> None:
        """Reset a table's mark and history; rows stay."""
        ...


DELTAS_MAX: Final = 20_000
"""Deltas in one write, unless one commit has more: bounds memory and how long a table is locked. A
larger batch takes several writes, each with its mark."""

T = TypeVar("T")
L = TypeVar("L", bound=TableLedger)


class LedgerDatabase(ABC, Generic[L]):
    """`lakesync.adapters.database.DestinationDatabase` over a ledger. Not for several threads."""

    @abstractmethod
    def _answer(self, work: Callable[[], T]) -> Result[T, LakeSyncError]:
        """Do work; an error ends what is remembered of tables: another writer may change them."""

    @abstractmethod
    def _read(self, work: Callable[[L], T]) -> Result[T, LakeSyncError]:
        """Do work with the ledger."""

    @abstractmethod
    def _prepare(self, table: str, schema: TableSchema | None, written: Iterable[str]) -> None:
        """Make a table ready for a schema, and for columns that are about to be written."""

    @abstractmethod
    def _insert_part(self, batch: TableBatch, part: Sequence[PlacedDelta], last: Stamp) -> Inserted:
        """Apply whole commits of a batch, and move the mark to the last of them."""

    @abstractmethod
    def _put_rows(self, images: RowImages) -> Inserted:
        """Merge rows, and remove others."""

    @abstractmethod
    def _rewrite(self, table: str) -> int:
        """Rewrite every row of a table that exists."""

    @abstractmethod
    def _retry(self, table: str) -> tuple[DeadLetter, ...]:
        """Try again the rows that are refused."""

    @abstractmethod
    def close(self) -> None:
        """Close connections; the adapter may be used again."""

    def ensure_schema(self, schema: TableSchema) -> Result[None, LakeSyncError]:
        return self._answer(lambda: self._prepare(schema.table, schema, ()))

    def insert_deltas(self, batch: TableBatch) -> Result[Inserted, LakeSyncError]:
        def work() -> Inserted:
            written = {name for placed in batch.deltas for name, _ in placed.delta.columns}
            self._prepare(batch.table, batch.schema, written)
            done = Inserted()
            for part, last in parts(batch, DELTAS_MAX):
                one = self._insert_part(batch, part, last)
                done = Inserted(done.deltas + one.deltas, done.rows + one.rows, one.dead_letters)
            return done

        return self._answer(work)

    def put_rows(self, images: RowImages) -> Result[Inserted, LakeSyncError]:
        def work() -> Inserted:
            written = {name for state in images.rows.values() if state for name in state.columns}
            self._prepare(images.table, images.schema, written)
            return self._put_rows(images)

        return self._answer(work)

    def mark(self, table: str) -> Result[Stamp, LakeSyncError]:
        return self._read(lambda ledger: ledger.mark(table))

    def query_deltas_since(
        self, table: str, since: Position, deltas_max: int
    ) -> Result[DeltaPage, LakeSyncError]:
        def work(ledger: L) -> DeltaPage:
            return delta_page(ledger.deltas(table, since, deltas_max + 1), since, deltas_max)

        return self._read(work)

    def latest_state(
        self, table: str, row_id: str
    ) -> Result[Mapping[str, Any] | None, LakeSyncError]:
        def work(ledger: L) -> Mapping[str, Any] | None:
            state = ledger.states(table, [row_id]).get(row_id, EMPTY)
            return values_of(state, ledger.schema(table))

        return self._read(work)

    def tables(self) -> Result[Mapping[str, TableSchema | None], LakeSyncError]:
        return self._read(lambda ledger: ledger.schemas())

    def answers(self) -> Result[None, LakeSyncError]:
        return self.tables().map(lambda _: None)

    def rows_after(self, table: str, row_id: str, rows_max: int) -> Result[RowPage, LakeSyncError]:
        def work(ledger: L) -> RowPage:
            return row_page(ledger.states_after(table, row_id, rows_max + 1), rows_max)

        return self._read(work)

    def rows_of(
        self, table: str, row_ids: Sequence[str]
    ) -> Result[Mapping[str, RowState], LakeSyncError]:
        return self._read(lambda ledger: ledger.states(table, row_ids))

    def forget_history(self, table: str, until: Stamp) -> Result[None, LakeSyncError]:
        return self._read(lambda ledger: ledger.forget_commits(table, until))

    def restart(self, table: str) -> Result[None, LakeSyncError]:
        return self._read(lambda ledger: ledger.begin_anew(table))

    def rewrite(self, table: str) -> Result[int, LakeSyncError]:
        if table not in self.tables().unwrap_or({}):
            return Err(NotFound(f"there is no table {table} in this database"))
        return self._answer(lambda: self._rewrite(table))

    def dead_letters(self, table: str) -> Result[tuple[DeadLetter, ...], LakeSyncError]:
        return self._read(lambda ledger: ledger.dead_letters(table))

    def retry_dead_letters(self, table: str) -> Result[tuple[DeadLetter, ...], LakeSyncError]:
        return self._answer(lambda: self._retry(table))

    def __enter__(self) -> Self:
        """Return the adapter, which is closed at the end of the block."""
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# --- batches --------------------------------------------------------------------------------------


class Continues(Protocol):
    """A batch that continues a table from a mark."""

    @property
    def table(self) -> str:
        """The table's name."""
        ...

    @property
    def after(self) -> Stamp:
        """The mark that the table must have."""
        ...


def missing_batch(batch: Continues, mark: Stamp) -> Conflict:
    """Return the error for a batch whose predecessor was not inserted."""
    return Conflict(
        f"table {batch.table} has taken its batches up to {mark}, and this one begins at "
        f"{batch.after}; insert those between them first, or fill the destination anew"
    )


def old_until(last: Stamp, history_ms: int | None) -> Stamp:
    """Return the stamp up to which history is too old to keep, as of a commit; 0 if none is."""
    return 0 if history_ms is None else max(0, last - stamp(history_ms))


def check_history(table: str, since: Position, forgotten: Stamp) -> None:
    """Refuse to read behind a position that the history no longer reaches.

    The size of the last forgotten commit is unknown, so a reader inside it lacks the rest.

    Raises:
        CursorExpired: the history begins after the position.
    """
    if since < Position(forgotten, ORDINAL_END) and forgotten:
        raise CursorExpired(
            f"the history of {table} begins behind {forgotten}; read its rows, then its history"
        )


def merged_images(
    images: RowImages, stored: Mapping[str, RowState]
) -> tuple[dict[str, RowState], list[str]]:
    """Return the states that rows get from images of them, and the rows to be removed.

    Args:
        stored: the states of those that are stored.
    """
    changed: dict[str, RowState] = {}
    for row_id, state in images.rows.items():
        before = stored.get(row_id)
        if state is None or (before is None and view(state) is None):
            continue
        after = join(newer_than(before, images.horizon) if before else EMPTY, state)
        if after != before:
            changed[row_id] = after
    gone = [row_id for row_id, state in images.rows.items() if state is None and row_id in stored]
    return changed, gone


TABLE_DEAD_LETTERS_MAX: Final = 1_000
"""Refused rows that one table of a destination may have; with more, the table is at fault."""


def parts(batch: TableBatch, deltas_max: int) -> Iterator[tuple[list[PlacedDelta], Stamp]]:
    """Cut a batch at commit boundaries; each part comes with the mark that it leads to."""
    part: list[PlacedDelta] = []
    for _, commit in groupby(batch.deltas, key=lambda placed: placed.position.commit):
        more = list(commit)
        if part and len(part) + len(more) > deltas_max:
            yield part, part[-1].position.commit
            part = []
        part += more
    yield part, batch.last


def merged(
    deltas: Iterable[PlacedDelta], stored: Callable[[list[str]], Mapping[str, RowState]]
) -> dict[str, RowState]:
    """Return the new states of the rows that deltas change.

    Args:
        deltas: in commit order.
        stored: gives the states of the rows that are stored.
    """
    by_row: dict[str, list[Any]] = {}
    for _, delta in deltas:
        by_row.setdefault(delta.row_id, []).append(delta)
    before = stored(list(by_row))
    folded = {
        row_id: fold(changes, before.get(row_id, EMPTY)) for row_id, changes in by_row.items()
    }
    return {row: state for row, state in folded.items() if state is not before.get(row, EMPTY)}


def values_of(state: RowState, schema: TableSchema | None = None) -> dict[str, Any] | None:
    """Return a row's values as Python objects; None if the table has no such row."""
    values = view(as_read(state, delete_wins=bool(schema and schema.delete_wins)))
    return None if values is None else {name: parse(raw) for name, raw in values.items()}


def commits_of(deltas: Iterable[PlacedDelta]) -> list[tuple[Stamp, bytes]]:
    """Return whole commits in commit order, each with its deltas as the history keeps them."""
    return [
        (commit, encode_records(delta for _, delta in placed))
        for commit, placed in groupby(deltas, key=lambda placed: placed.position.commit)
    ]


def deltas_behind(
    since: Position,
    deltas_max: int,
    commits_after: Callable[[Stamp], Sequence[tuple[Stamp, bytes]]],
) -> Iterator[PlacedDelta]:
    """Yield deltas behind a position, in order: at least ``deltas_max``, or all of them.

    Args:
        commits_after: returns the next commits behind a stamp with their records; none at the end.
    """
    after, count = since.commit - 1, 0
    while count < deltas_max:
        commits = commits_after(after)
        if not commits:
            return
        for commit, records in commits:
            for place, delta in enumerate(decode_records(bytes(records))):
                if (commit, place) > since:
                    count += 1
                    yield PlacedDelta(Position(commit, place), delta)
        after = commits[-1][0]


def check_refused(
    table: str, reasons: Collection[str], *, mend: str = "the schema or the rows"
) -> None:
    """Check that not too many rows of a table are refused.

    Args:
        mend: what must be repaired then, for the message.

    Raises:
        ConstraintViolated: they are too many.
    """
    if len(reasons) > TABLE_DEAD_LETTERS_MAX:
        raise ConstraintViolated(
            f"more than {TABLE_DEAD_LETTERS_MAX} rows of {table} were refused, the first because "
            f"{next(iter(reasons))}; mend {mend}, then repeat the operation"
        )


def delta_page(deltas: Iterable[PlacedDelta], since: Position, deltas_max: int) -> DeltaPage:
    """Get the first of what lies behind a position; reads one more, to tell whether there are."""
    read = tuple(islice(deltas, deltas_max + 1))
    page, following = read[:deltas_max], read[deltas_max:]
    if page:
        commit, ordinal = page[-1].position
        goes_on = bool(following) and following[0].position.commit == commit
        since = Position(commit, ordinal if goes_on else ORDINAL_END)
    return DeltaPage(page, since, bool(following))


def row_page(states: Mapping[str, RowState], rows_max: int) -> RowPage:
    """Return a page of rows; one row more than wanted shows that there are more."""
    return RowPage(dict(islice(states.items(), rows_max)), len(states) > rows_max)


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause the cycle collector, which takes a third of the time with a batch's many tuples.

    For work with bounded memory; the collector runs afterwards. May be nested.
    """
    is_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_enabled:
            gc.enable()
