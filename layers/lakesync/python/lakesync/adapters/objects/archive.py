"""The archive of a `Lifecycle`: the history of tables as objects of a bucket, kept for ever.

    FOLDER/GATEWAY/TABLE/archive/AFTER-LAST.json.gz     all deltas of the commits in (AFTER, LAST]

A file is named by its range of commits and never changes. A repeated step puts the same file again,
and concurrent writers put files that agree on the commits that they share. The archive has no rows;
the database has them. The end of the last file is the table's mark. If a file does not begin where
another ends, history is missing; reading across such a gap is an error.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple, Self, TypeVar

from lakesync.adapters.batches import delta_page
from lakesync.adapters.database import ORDINAL_END, Inserted, PlacedDelta, Position, missing_batch
from lakesync.adapters.objects.lines import commit_lines, commits_in, file_of
from lakesync.errors import CursorExpired, LakeSyncError
from lakesync.result import Err, Ok
from lakesync.wire.records import decode_records

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lakesync.adapters.database import DeltaPage, TableBatch
    from lakesync.adapters.lake.adapter import LakeAdapter
    from lakesync.core.clock import Stamp
    from lakesync.result import Result

T = TypeVar("T")

_SPAN: Final = re.compile(r"([0-9]{20})-([0-9]{20})\.json\.gz")
_TYPE: Final = "application/gzip"


class Span(NamedTuple):
    """A file's range. An empty one, with begin equal to end, only marks where history begins."""

    after: Stamp
    last: Stamp


class HistoryArchive:
    """One gateway's history in one bucket.

    Args:
        objects: the bucket.
        prefix: the prefix of all keys; empty, or ending with a slash.
        gateway: the gateway's id.
    """

    def __init__(self, objects: LakeAdapter, prefix: str, gateway: str) -> None:
        self._objects = objects
        self._prefix = f"{prefix}{gateway.replace('/', '.')}/"

    def mark(self, table: str) -> Result[Stamp, LakeSyncError]:
        """Return the commit up to which a table's history is archived; 0 before the first."""
        return _answered(lambda: _mark(self._spans(table)))

    def insert_deltas(self, batch: TableBatch) -> Result[Inserted, LakeSyncError]:
        """Take a batch of history. Safe to repeat, and to kill: it is one object.

        Errors: Conflict, if a batch before this one is missing; see `begin_anew`.
        """

        def work() -> Inserted:
            mark = _mark(self._spans(batch.table))
            if mark >= batch.last:
                return Inserted()
            if mark < batch.after:
                raise missing_batch(batch, mark)
            fresh = [one for one in batch.deltas if one.position.commit > mark]
            key, body = self._key(batch.table, Span(mark, batch.last)), file_of(commit_lines(fresh))
            is_new = self._objects.put_new_object(key, body, _TYPE)
            return Inserted(len(fresh) if is_new else 0)

        return _answered(work)

    def clear(self, table: str, at: Stamp) -> Result[None, LakeSyncError]:
        """Remove all archived history of a table, and continue behind a commit. Safe to repeat.

        Removed history does not come back, even from a concurrent put: see `is_cleared`.
        """

        def work() -> None:
            begin = max(at, _mark(self._spans(table)))
            self._put(table, Span(begin, begin), ())
            doomed = [span for span in self._spans(table) if span.after < begin]
            self._objects.delete_objects([self._key(table, span) for span in doomed])

        return _answered(work)

    def is_cleared(self, table: str, until: Stamp) -> Result[bool, LakeSyncError]:
        """Return whether history begins behind a commit; earlier files are to be withdrawn."""
        return _answered(
            lambda: any(span.last == span.after >= until for span in self._spans(table))
        )

    def withdraw(self, table: str, after: Stamp, last: Stamp) -> Result[None, LakeSyncError]:
        """Take back a file that was put. Safe to repeat."""
        key = self._key(table, Span(after, last))
        return _answered(lambda: self._objects.delete_objects([key]))

    def begin_anew(self, table: str, at: Stamp) -> Result[None, LakeSyncError]:
        """Continue behind a commit, though the history before it is missing and lost everywhere."""
        return _answered(lambda: self._put(table, Span(at, at), ()))

    def query_deltas_since(
        self, table: str, since: Position, deltas_max: int
    ) -> Result[DeltaPage, LakeSyncError]:
        """Return a table's history behind a position, as far as it is archived.

        Errors: CursorExpired, if some of it is missing.
        """
        return _answered(lambda: self._read(table, since, deltas_max))

    def forget_history(self, table: str, until: Stamp) -> Result[None, LakeSyncError]:
        """Remove a table's deltas up to a commit; the mark stays. Safe to repeat, and to kill."""

        def work() -> None:
            spans = self._spans(table)
            end = min(until, _mark(spans))
            doomed = [span for span in spans if span.after < end]
            for span in doomed:
                if span.last > end:
                    left = [one for one in self._deltas(table, span) if one.position.commit > end]
                    self._put(table, Span(end, span.last), commit_lines(left))
            if doomed and _mark(spans) == end:
                self._put(table, Span(end, end), ())
            self._objects.delete_objects([self._key(table, span) for span in doomed])

        return _answered(work)

    def close(self) -> None:
        """Nothing is open."""

    def __enter__(self) -> Self:
        """Use it."""
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self, table: str, since: Position, deltas_max: int) -> DeltaPage:
        spans = self._spans(table)
        mark, at = _mark(spans), since.commit - 1
        read: list[PlacedDelta] = []
        is_whole = since.commit >= mark or _covers(spans, since.commit)
        is_whole = is_whole and (since.commit > mark or _has_rest(spans, since))
        while is_whole and len(read) <= deltas_max:
            span = _next(spans, at, since.commit)
            if span is None:
                break
            read += [
                one for one in self._deltas(table, span)
                if one.position.commit > at and one.position > since
            ]  # fmt: skip
            at = span.last
        if not is_whole or (not read and max(at, since.commit) < mark):
            raise CursorExpired(
                f"the archive of {table} lacks history behind {since.commit}; read its rows, then "
                "its history"
            )
        return delta_page(read, since, deltas_max)

    def _deltas(self, table: str, span: Span) -> list[PlacedDelta]:
        body = self._objects.get_object(self._key(table, span))
        return [
            PlacedDelta(Position(commit, place), delta)
            for commit, records in commits_in(body)
            for place, delta in enumerate(decode_records(records))
        ]

    def _put(self, table: str, span: Span, lines: Sequence[bytes]) -> None:
        self._objects.put_object(self._key(table, span), file_of(lines), _TYPE)

    def _spans(self, table: str) -> list[Span]:
        folder = self._folder(table)
        names = (key.removeprefix(folder) for key in self._objects.list_objects(folder))
        spans = (_SPAN.fullmatch(name) for name in names)
        return sorted(Span(int(one[1]), int(one[2])) for one in spans if one)

    def _folder(self, table: str) -> str:
        return f"{self._prefix}{table}/archive/"

    def _key(self, table: str, span: Span) -> str:
        return f"{self._folder(table)}{span.after:020d}-{span.last:020d}.json.gz"


def _mark(spans: Sequence[Span]) -> Stamp:
    return max((span.last for span in spans), default=0)


def _covers(spans: Sequence[Span], commit: Stamp) -> bool:
    return any(span.after <= commit < span.last for span in spans)


def _has_rest(spans: Sequence[Span], since: Position) -> bool:
    """Return whether the rest of a commit is archived for a reader that has read part of it."""
    is_read = since >= Position(since.commit, ORDINAL_END) or not since.commit
    return is_read or any(span.after < since.commit <= span.last for span in spans)


def _next(spans: Sequence[Span], at: Stamp, since: Stamp) -> Span | None:
    """Return the file that continues behind a commit and reaches farthest; others repeat it.

    The first file that is read may begin or end at the last commit that the reader has seen.
    """
    for begin in (at, max(at, since)):
        fits = [span for span in spans if span.after <= begin and span.last > begin]
        if fits:
            return max(fits, key=lambda span: span.last)
    return None


def _answered(work: Callable[[], T]) -> Result[T, LakeSyncError]:
    try:
        return Ok(work())
    except LakeSyncError as error:
        return Err(error)
