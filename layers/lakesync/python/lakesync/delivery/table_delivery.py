"""Applies the claims of one table of a destination. Idempotent; safe to kill and to race.

Batches of a table form a chain: the one that continues the last applied one is next. If there is
none, an earlier batch was never claimed here, or its object is gone. Then the table is filled, and
the chain continues behind that. After a batch is applied, only this destination's claim is removed,
and no object: others may still claim it. Laws D7, D8, D10: ``docs/spec/delivery.md``.

A table is filled from the buffer, up to one commit; its batches follow. The claim that asks for the
filling stores its progress. The steps, each idempotent and safe to kill:

    1. the table begins again           its mark is 0, so that no batch is applied meanwhile
    2. its end is recorded              every commit up to there is in the buffer's rows, and every
                                        batch behind it is claimed for this destination
    3. rows are put, page by page       merged into those that exist
    4. rows are removed, page by page   those that the buffer lacks, or the destination may not see;
                                        only if anything was there before
    5. the mark moves, then the claim   is removed: from here the batches follow

Rows of append tables are not in the buffer. Such a table is filled with the events of the batches
whose objects still exist, and continues from there. The table's mark stores the progress.

An erasure removes everything that a destination keeps of rows: their values, history and dead
letters (law E9: ``docs/spec/erasure.md``):

    1. A row that has values stays: it exists again, or its deletion has not arrived yet. Events are
       never deleted, so they are removed.
    2. Rows are removed before the history, so that after a crash between the two a repeat follows.
    3. Where there is an archive, the database's history moves there first, and only the deltas of
       the rows are removed from it. Without one, the table's whole history is forgotten.
"""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, Final, Protocol

from lakesync.adapters.copying import DELTAS_READ, archive_table
from lakesync.adapters.database import RowImages
from lakesync.core.deliveries import (
    DELIVERIES,
    DELIVERIES_FAILED,
    FILL,
    RETRY,
    STAGING,
    FillClaim,
    claimed_last,
    is_erasure,
    parse_claim,
    read_erasure,
    read_fill_claim,
    staged_batch,
)
from lakesync.core.merge import view
from lakesync.delivery.table_context import IMAGES_MAX, becoming_visible
from lakesync.errors import Contention, LakeSyncError, NotFound, Retry, ValidationFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from lakesync.adapters.database import PlacedDelta
    from lakesync.core.clock import Stamp
    from lakesync.core.deliveries import Batch, Pace
    from lakesync.core.merge import RowState
    from lakesync.delivery.table_context import TableContext

# --- claims ---------------------------------------------------------------------------------------


class LargeWork(Protocol):
    """The taker of work that is too large for a function."""

    def take(self, context: TableContext, batches: Sequence[Batch]) -> bool:
        """Have waiting batches of a table taken, if they are large; tell whether they are."""
        ...


class TableDelivery:
    """The work on one table of one destination, as a function does it.

    Args:
        large: takes over what is too large for a function; without it nothing is handed over.
        pace: the size of one write; the destination's own, unless it is given.
    """

    def __init__(
        self, context: TableContext, large: LargeWork | None = None, pace: Pace | None = None
    ) -> None:
        self._context = context
        self._large = large
        self._pace = pace or context.destination.pace
        self._prefix = context.place.prefix
        self.is_handed_over = False
        """Whether the waiting batches were left to the taker of large work."""
        self.deltas = 0
        """Deltas that were new at the destination."""
        self.has_written = False
        """Whether a write was begun."""

    def work(self, has_time: Callable[[], bool]) -> bool:
        """Continue until nothing waits that can be applied; False if time ran out.

        Raises:
            LakeSyncError: a store or the database refused; what was done stays done.
        """
        context = self._context
        while keys := context.objects.list_objects(self._prefix):
            if self._prefix + FILL in keys:
                self.has_written = True
                if not Filling(context).go_on(has_time):
                    return False
                continue
            if self._prefix + RETRY in keys:
                context.database.retry_dead_letters(context.table).unwrap()
                context.objects.delete_object(self._prefix + RETRY)
                continue
            if erasures := [key for key in keys if is_erasure(key)]:
                if not erase(context, erasures[0], has_time):
                    return False
                continue
            batches = [key for key in keys if claimed_last(key)]
            # The mark is read after the listing, so the batch that continues it is listed, or never
            # was.
            if not self._follow(batches, context.mark(), has_time):
                return False
            if not batches or self.is_handed_over:
                return True  # the rest is of a later release, and waits for it
            if self._pace.gather_ms and self._prefix + FILL not in self._listed():
                return True  # batches that arrived meanwhile are gathered, and announced separately
        return True

    def _listed(self) -> list[str]:
        return self._context.objects.list_objects(self._prefix)

    def _follow(self, keys: Sequence[str], mark: Stamp, has_time: Callable[[], bool]) -> bool:
        """Apply the chain that continues a mark, and request a filling if it ends too early."""
        batches = []
        for key in keys:
            if claimed_last(key) <= mark:
                self._context.objects.delete_object(key)
            elif batch := self._read(key):
                batches.append(batch)
        while batches and self._takes(batches):
            run = chained(batches, mark, self._pace.deltas)
            if not run:
                self._ask_for_filling()
                return True
            if not has_time():
                return False
            self._context.check_declared()
            until = self._apply(run, mark)
            if not until:
                return True
            mark = until
            for covered in [one for one in batches if one.last <= mark]:
                self._context.objects.delete_object(covered.claim_key)
            batches = [one for one in batches if one.last > mark]
        return True

    def _takes(self, batches: Sequence[Batch]) -> bool:
        """Return whether the next write is to be made here; else have it made elsewhere."""
        self.is_handed_over = self._large is not None and self._large.take(self._context, batches)
        return not self.is_handed_over

    def _read(self, key: str) -> Batch | None:
        """Read a claim; a malformed one is set aside, one of a later release waits."""
        try:
            body = self._context.objects.get_object(key)
        except NotFound:
            return None  # applied meanwhile
        try:
            return parse_claim(key, body)
        except LakeSyncError as error:
            if error.retry is Retry.LATER:
                raise
            self._set_aside(key, body, error)
            return None

    def _apply(self, run: Sequence[Batch], mark: Stamp) -> Stamp:
        """Apply consecutive batches as one; returns the commit reached.

        0 if the first one's object cannot be read, which is repaired; then a later one is first.
        """
        context, size = self._context, 0
        deltas: list[PlacedDelta] = []
        last: Batch | None = None
        for batch in run:
            try:
                more, more_bytes = context.deltas_of(batch)
            except (NotFound, ValidationFailed) as error:
                if last:
                    break
                self._see_to(batch, error)
                return 0
            seen = last.last if last else mark
            deltas += [one for one in more if one.position.commit > seen]
            last, size = batch, size + more_bytes
            if size >= self._pace.content_bytes:
                break
        assert last  # noqa: S101 - a run has a batch
        self._put(replace(last, after=run[0].after), deltas)
        return last.last

    def _put(self, batch: Batch, deltas: Sequence[PlacedDelta]) -> None:
        self.has_written = True
        if self._context.images.is_filtered and not batch.append:
            self._put_images(batch, deltas)
        else:
            self.deltas += self._context.put_deltas(batch, deltas)

    def _see_to(self, batch: Batch, error: LakeSyncError) -> None:
        """Have the loss of a batch whose object cannot be read repaired."""
        if batch.append:
            # Its events are otherwise only in the lake.
            body = self._context.objects.get_object(batch.claim_key)
            self._set_aside(batch.claim_key, body, error)
        self._ask_for_filling()

    def _put_images(self, batch: Batch, deltas: Sequence[PlacedDelta]) -> None:
        """Put the rows that a batch touches as they are now, a few commits at a time."""
        context = self._context
        schema = context.destination.schema_of(context.table, batch.schema)
        after = batch.after
        images: dict[str, RowState | None] = {}
        for rows, last in _touched(deltas, batch.last):
            images |= context.images.of(rows)
            if last < batch.last and len(images) < self._pace.rows:
                continue
            put = RowImages(context.table, after, last, images, schema, horizon=context.horizon())
            self.deltas += context.put_rows(put)
            after, images = last, {}

    def _ask_for_filling(self) -> None:
        key = self._prefix + FILL
        self._context.objects.put_object(key, FillClaim().to_json().encode(), "application/json")

    def _set_aside(self, key: str, body: bytes, error: LakeSyncError) -> None:
        """Move a claim that can never succeed to where people see it. Idempotent."""
        failure = {"reason": str(error), "claim": body.decode(errors="replace")}
        failed = DELIVERIES_FAILED + key.removeprefix(DELIVERIES)
        self._context.objects.put_object(failed, json.dumps(failure).encode(), "application/json")
        self._context.objects.delete_object(key)


def chained(batches: Sequence[Batch], mark: Stamp, deltas_max: int) -> list[Batch]:
    """Get the batches that continue a mark, consecutively: one, or as many as fit into a write."""
    run: list[Batch] = []
    deltas = 0
    while following := [batch for batch in batches if batch.after <= mark < batch.last]:
        batch = max(following, key=lambda one: one.last)
        deltas += batch.deltas
        if run and (deltas > deltas_max or batch.append != run[0].append):
            break
        run.append(batch)
        mark = batch.last
    return run


def _touched(
    deltas: Sequence[PlacedDelta], last: Stamp
) -> Iterator[tuple[dict[str, Stamp], Stamp]]:
    """Yield the rows that whole commits touch, each with the last of these, and where they end.

    About `IMAGES_MAX` rows at a time.
    """
    rows: dict[str, Stamp] = {}
    until = 0
    for commit, placed in groupby(deltas, key=lambda one: one.position.commit):
        more = dict.fromkeys((one.delta.row_id for one in placed), commit)
        if rows and len(rows | more) > IMAGES_MAX:
            yield rows, until
            rows = {}
        rows |= more
        until = commit
    yield rows, last


# --- filling --------------------------------------------------------------------------------------


ROWS_MAX: Final = 1_000
"""Rows of one page; a page also ends at about 1 MB."""


class Filling:
    """The filling of one table, as its claim says."""

    def __init__(self, context: TableContext) -> None:
        self._context = context
        self._key = context.place.prefix + FILL

    def go_on(self, has_time: Callable[[], bool]) -> bool:
        """Continue until the table is filled; False if time ran out.

        Raises:
            Contention: the last commits that it must contain may not be visible yet.
            LakeSyncError: a store or the database refused; what was done stays done.
        """
        claim = read_fill_claim(self._context.objects.get_object(self._key))
        if not claim.until:
            claim = self._begin()
        elif self._context.mark() >= claim.until:
            self._end()  # another process has completed the filling meanwhile
            return True
        appends = self._context.config.appends(self._context.table)
        if not appends and (wait_ms := self._context.visible_in_ms(claim.until)):
            raise becoming_visible(wait_ms)
        while claim.place is not None or claim.checked is not None:
            if not has_time():
                return False
            self._context.check_declared()
            claim = self._put(claim) if claim.place is not None else self._remove(claim)
            if self._is_asked_again():
                return self.go_on(has_time)
            self._save(claim)
        if appends and not self._put_events(claim.until, has_time):
            return False
        self._put_rows({}, claim, is_last=True)
        if self._is_asked_again():
            return self.go_on(has_time)
        self._end()
        return True

    def _begin(self) -> FillClaim:
        context = self._context
        if context.mark():
            context.database.restart(context.table).unwrap()
        is_empty = not context.database.rows_after(context.table, "", 1).unwrap().rows
        appends = context.config.appends(context.table)
        until = self._before_what_waits() if appends else self._announced()
        again = not is_empty and (context.images.is_filtered or not appends)
        claim = FillClaim(until, None if appends else "", again, "" if again else None)
        self._save(claim)
        return claim

    def _announced(self) -> Stamp:
        """Return the end of the last range that may have been announced to other destinations only.

        A range that is recorded later is announced after this declaration is read.
        """
        state = self._context.buffer.flush_state(self._context.gateway)
        return max(state.watermark, state.until, 1)

    def _before_what_waits(self) -> Stamp:
        """Return where the first batch begins that is claimed, or will be."""
        context = self._context
        flushed = context.buffer.flushed_tables(context.gateway).get(context.table, 0)
        waiting = [int(key.rpartition("/")[2].partition("-")[0])
                   for key in context.objects.list_objects(context.place.prefix)
                   if claimed_last(key)]  # fmt: skip
        return max(min(waiting, default=flushed), 1)

    def _put_events(self, until: Stamp, has_time: Callable[[], bool]) -> bool:
        """Put the events up to a commit that still exist; False if time ran out.

        Older events are only in the lake: the table begins behind them.
        """
        context = self._context
        mark = context.mark()
        for batch in self._kept(until):
            if batch.last <= mark:
                continue
            if not has_time():
                return False
            context.check_declared()
            try:
                deltas, _ = context.deltas_of(batch)
            except NotFound:
                continue  # removed meanwhile, as it was old enough
            if batch.after > mark:
                self._put_rows({}, FillClaim(batch.after), is_last=True)
            context.put_deltas(batch, deltas)
            mark = batch.last
        return True

    def _kept(self, until: Stamp) -> list[Batch]:
        """Return the batches whose objects still exist, in order, up to a commit."""
        context = self._context
        keys = context.objects.list_objects(f"{STAGING}{context.gateway}/{context.table}/")
        schema = context.config.schemas.get(context.table)
        staged = [batch for key in keys if (batch := staged_batch(key, schema))]
        return [batch for batch in staged if batch.last <= until]

    def _put(self, claim: FillClaim) -> FillClaim:
        context, pace = self._context, self._context.destination.pace
        images: dict[str, RowState | None] = {}
        place, size = claim.place or "", 0
        while True:
            page = context.buffer.scan_rows(context.gateway, context.table, place, ROWS_MAX)
            images |= context.images.decided(dict(page.rows))
            place, size = page.place, size + sum(len(row.state) for _, row in page.rows)
            if not place or len(images) >= pace.rows or size >= pace.content_bytes:
                break
        if claim.again:
            if others := context.mapped_otherwise(images):
                self._put_rows(dict.fromkeys(others), claim)
        else:
            images = {row_id: state for row_id, state in images.items() if state is not None}
        self._put_rows(images, claim)
        return replace(claim, place=place or None)

    def _remove(self, claim: FillClaim) -> FillClaim:
        context = self._context
        rows_max = max(ROWS_MAX, context.destination.pace.rows)
        page = context.database.rows_after(context.table, claim.checked or "", rows_max).unwrap()
        if context.config.appends(context.table):
            images = context.images.of_events(page.rows)
        else:
            images = context.images.of(dict.fromkeys(page.rows, 0))
        gone = {row_id: state for row_id, state in images.items() if state is None}
        self._put_rows(gone, claim)
        last = max(page.rows, key=str.encode, default="")
        return replace(claim, checked=last if page.has_more else None)

    def _put_rows(
        self, images: Mapping[str, RowState | None], claim: FillClaim, *, is_last: bool = False
    ) -> None:
        context = self._context
        rows = RowImages(
            context.table, 0, claim.until, images, context.schema(), is_last, context.horizon()
        )
        context.put_rows(rows)

    def _is_asked_again(self) -> bool:
        """Return whether another filling was asked for: it includes rows that this one has put."""
        try:
            return not read_fill_claim(self._context.objects.get_object(self._key)).until
        except NotFound:
            return False  # another process has completed it

    def _save(self, claim: FillClaim) -> None:
        self._context.objects.put_object(self._key, claim.to_json().encode(), "application/json")

    def _end(self) -> None:
        self._context.objects.delete_object(self._key)


# --- erasure --------------------------------------------------------------------------------------


def erase(context: TableContext, key: str, has_time: Callable[[], bool]) -> bool:
    """Do what a claim asks for, and remove it; False if time ran out. Idempotent, safe to kill.

    Raises:
        Contention: another process wrote the table; the claim stays.
        LakeSyncError: a store or the database refused; the claim stays.
    """
    try:
        row_ids = read_erasure(context.objects.get_object(key))
    except NotFound:
        return True  # done in the meantime
    mark = context.mark()
    if mark:
        _remove(context, row_ids, mark)
        if not _remove_history(context, row_ids, mark, has_time):
            return False
        context.database.retry_dead_letters(context.table).unwrap()
    context.objects.delete_object(key)
    return True


def _remove_history(
    context: TableContext, row_ids: Sequence[str], mark: Stamp, has_time: Callable[[], bool]
) -> bool:
    """Remove the history of rows up to a commit; False if time ran out."""
    archive = context.archive()
    if archive is None:
        context.database.forget_history(context.table, mark).unwrap()
        return True
    with archive:
        has_more = True
        while has_more:
            if not has_time():
                return False
            moved = archive_table(
                context.database, archive, context.table, until=mark, deltas_max=DELTAS_READ
            )
            has_more = moved.unwrap().deltas > 0
        return archive.erase_rows(context.table, row_ids, mark, has_time).unwrap()


def _remove(context: TableContext, row_ids: Sequence[str], mark: int) -> None:
    """Remove rows without a trace: tombstones, and what soft deletes left of them."""
    schema = context.schema()
    is_events = bool(schema and schema.append)

    def doomed() -> list[str]:
        there = context.database.rows_of(context.table, row_ids).unwrap()
        return [row_id for row_id, state in there.items() if is_events or _is_gone(state)]

    gone = doomed()
    if not gone:
        return
    images = RowImages(
        context.table, mark, mark + 1, dict.fromkeys(gone), schema, is_last=False
    )  # behind the mark, which stays
    context.database.put_rows(images).unwrap()
    if doomed():
        raise Contention(
            "another writer just wrote the table; repeat the operation", retry_after_s=1
        )


def _is_gone(state: RowState) -> bool:
    return view(state) is None
