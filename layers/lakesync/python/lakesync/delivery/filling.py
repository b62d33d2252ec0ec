"""Fills one table of a destination from the buffer, up to one commit; its batches follow.

The claim that asks for the filling stores its progress. The steps, each idempotent and safe to
kill:

    1. the table begins again           its mark is 0, so that no batch is applied meanwhile
    2. its end is recorded              every commit up to there is in the buffer's rows, and every
                                        batch behind it is claimed for this destination
    3. rows are put, page by page       merged into those that exist
    4. rows are removed, page by page   those that the buffer lacks, or the destination may not see;
                                        only if anything was there before
    5. the mark moves, then the claim   is removed: from here the batches follow

Rows of append tables are not in the buffer. Such a table is filled with the events of the batches
whose objects still exist, and continues from there. The table's mark stores the progress. Law D8:
``docs/spec/delivery.md``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from lakesync.adapters.row_images import RowImages
from lakesync.core.claims import (
    FILL,
    STAGING,
    FillClaim,
    claimed_last,
    read_fill_claim,
    staged_batch,
)
from lakesync.delivery.images import becoming_visible
from lakesync.errors import NotFound

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lakesync.core.claims import Batch
    from lakesync.core.clock import Stamp
    from lakesync.core.merge import RowState
    from lakesync.delivery.desk import Desk

ROWS_MAX: Final = 1_000
"""Rows of one page; a page also ends at about 1 MB."""


class Filling:
    """The filling of one table, as its claim says."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._key = desk.place.prefix + FILL

    def go_on(self, has_time: Callable[[], bool]) -> bool:
        """Continue until the table is filled; False if time ran out.

        Raises:
            Contention: the last commits that it must contain may not be visible yet.
            LakeSyncError: a store or the database refused; what was done stays done.
        """
        claim = read_fill_claim(self._desk.objects.get_object(self._key))
        if not claim.until:
            claim = self._begin()
        elif self._desk.mark() >= claim.until:
            self._end()  # another process has completed the filling meanwhile
            return True
        appends = self._desk.config.appends(self._desk.table)
        if not appends and (wait_ms := self._desk.visible_in_ms(claim.until)):
            raise becoming_visible(wait_ms)
        while claim.place is not None or claim.checked is not None:
            if not has_time():
                return False
            self._desk.check_declared()
            claim = self._put(claim) if claim.place is not None else self._remove(claim)
            self._save(claim)
        if appends and not self._put_events(claim.until, has_time):
            return False
        self._put_rows({}, claim, is_last=True)
        self._end()
        return True

    def _begin(self) -> FillClaim:
        desk = self._desk
        if desk.mark():
            desk.database.restart(desk.table).unwrap()
        is_empty = not desk.database.rows_after(desk.table, "", 1).unwrap().rows
        appends = desk.config.appends(desk.table)
        until = self._before_what_waits() if appends else self._announced()
        again = not is_empty and (desk.images.is_filtered or not appends)
        claim = FillClaim(until, None if appends else "", again, "" if again else None)
        self._save(claim)
        return claim

    def _announced(self) -> Stamp:
        """Return the end of the last range that may have been announced to other destinations only.

        A range that is recorded later is announced after this declaration is read.
        """
        state = self._desk.buffer.flush_state(self._desk.gateway)
        return max(state.watermark, state.until, 1)

    def _before_what_waits(self) -> Stamp:
        """Return where the first batch begins that is claimed, or will be."""
        desk = self._desk
        flushed = desk.buffer.flushed_tables(desk.gateway).get(desk.table, 0)
        waiting = [int(key.rpartition("/")[2].partition("-")[0])
                   for key in desk.objects.list_objects(desk.place.prefix)
                   if claimed_last(key)]  # fmt: skip
        return max(min(waiting, default=flushed), 1)

    def _put_events(self, until: Stamp, has_time: Callable[[], bool]) -> bool:
        """Put the events up to a commit that still exist; False if time ran out.

        Older events are only in the lake: the table begins behind them.
        """
        desk = self._desk
        mark = desk.mark()
        for batch in self._kept(until):
            if batch.last <= mark:
                continue
            if not has_time():
                return False
            desk.check_declared()
            try:
                deltas, _ = desk.deltas_of(batch)
            except NotFound:
                continue  # removed meanwhile, as it was old enough
            if batch.after > mark:
                self._put_rows({}, FillClaim(batch.after), is_last=True)
            desk.put_deltas(batch, deltas)
            mark = batch.last
        return True

    def _kept(self, until: Stamp) -> list[Batch]:
        """Return the batches whose objects still exist, in order, up to a commit."""
        desk = self._desk
        keys = desk.objects.list_objects(f"{STAGING}{desk.gateway}/{desk.table}/")
        schema = desk.config.schemas.get(desk.table)
        staged = [batch for key in keys if (batch := staged_batch(key, schema))]
        return [batch for batch in staged if batch.last <= until]

    def _put(self, claim: FillClaim) -> FillClaim:
        desk, pace = self._desk, self._desk.destination.pace
        images: dict[str, RowState | None] = {}
        place, size = claim.place or "", 0
        while True:
            page = desk.buffer.scan_rows(desk.gateway, desk.table, place, ROWS_MAX)
            images |= desk.images.decided(dict(page.rows))
            place, size = page.place, size + sum(len(row.state) for _, row in page.rows)
            if not place or len(images) >= pace.rows or size >= pace.content_bytes:
                break
        if claim.again:
            if others := desk.mapped_otherwise(images):
                self._put_rows(dict.fromkeys(others), claim)
        else:
            images = {row_id: state for row_id, state in images.items() if state is not None}
        self._put_rows(images, claim)
        return replace(claim, place=place or None)

    def _remove(self, claim: FillClaim) -> FillClaim:
        desk = self._desk
        rows_max = max(ROWS_MAX, desk.destination.pace.rows)
        page = desk.database.rows_after(desk.table, claim.checked or "", rows_max).unwrap()
        if desk.config.appends(desk.table):
            images = desk.images.of_events(page.rows)
        else:
            images = desk.images.of(dict.fromkeys(page.rows, 0))
        gone = {row_id: state for row_id, state in images.items() if state is None}
        self._put_rows(gone, claim)
        last = max(page.rows, key=str.encode, default="")
        return replace(claim, checked=last if page.has_more else None)

    def _put_rows(
        self, images: Mapping[str, RowState | None], claim: FillClaim, *, is_last: bool = False
    ) -> None:
        desk = self._desk
        rows = RowImages(desk.table, 0, claim.until, images, desk.schema(), is_last, desk.horizon())
        desk.put_rows(rows)

    def _save(self, claim: FillClaim) -> None:
        self._desk.objects.put_object(self._key, claim.to_json().encode(), "application/json")

    def _end(self) -> None:
        self._desk.objects.delete_object(self._key)
