"""Applies the claims of one table of a destination. Idempotent; safe to kill and to race.

Batches of a table form a chain: the one that continues the last applied one is next. If there is
none, an earlier batch was never claimed here, or its object is gone. Then the table is filled, and
the chain continues behind that. After a batch is applied, only this destination's claim is removed,
and no object: others may still claim it. Laws D7, D8, D10: ``docs/spec/delivery.md``.
"""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, Protocol

from lakesync.adapters.row_images import RowImages
from lakesync.core.claims import (
    DELIVERIES,
    DELIVERIES_FAILED,
    FILL,
    RETRY,
    FillClaim,
    claimed_last,
    parse_claim,
)
from lakesync.core.erasure_claims import is_erasure
from lakesync.delivery.erasing import erase
from lakesync.delivery.filling import Filling
from lakesync.delivery.images import IMAGES_MAX
from lakesync.errors import LakeSyncError, NotFound, Retry, ValidationFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from lakesync.adapters.database import PlacedDelta
    from lakesync.core.claims import Batch
    from lakesync.core.clock import Stamp
    from lakesync.core.merge import RowState
    from lakesync.core.pace import Pace
    from lakesync.delivery.desk import Desk


class LargeWork(Protocol):
    """The taker of work that is too large for a function."""

    def take(self, desk: Desk, batches: Sequence[Batch]) -> bool:
        """Have waiting batches of a table taken, if they are large; tell whether they are."""
        ...


class TableDelivery:
    """The work on one table of one destination, as a function does it.

    Args:
        desk: its context.
        large: takes over what is too large for a function; without it nothing is handed over.
        pace: the size of one write; the destination's own, unless it is given.
    """

    def __init__(
        self, desk: Desk, large: LargeWork | None = None, pace: Pace | None = None
    ) -> None:
        self._desk = desk
        self._large = large
        self._pace = pace or desk.destination.pace
        self._prefix = desk.place.prefix
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
        desk = self._desk
        while keys := desk.objects.list_objects(self._prefix):
            if self._prefix + FILL in keys:
                self.has_written = True
                if not Filling(desk).go_on(has_time):
                    return False
                continue
            if self._prefix + RETRY in keys:
                desk.database.retry_dead_letters(desk.table).unwrap()
                desk.objects.delete_object(self._prefix + RETRY)
                continue
            if erasures := [key for key in keys if is_erasure(key)]:
                if not erase(desk, erasures[0], has_time):
                    return False
                continue
            batches = [key for key in keys if claimed_last(key)]
            # The mark is read after the listing, so the batch that continues it is listed, or never
            # was.
            if not self._follow(batches, desk.mark(), has_time):
                return False
            if not batches or self.is_handed_over:
                return True  # the rest is of a later release, and waits for it
            if self._pace.gather_ms and self._prefix + FILL not in self._listed():
                return True  # batches that arrived meanwhile are gathered, and announced separately
        return True

    def _listed(self) -> list[str]:
        return self._desk.objects.list_objects(self._prefix)

    def _follow(self, keys: Sequence[str], mark: Stamp, has_time: Callable[[], bool]) -> bool:
        """Apply the chain that continues a mark, and request a filling if it ends too early."""
        batches = []
        for key in keys:
            if claimed_last(key) <= mark:
                self._desk.objects.delete_object(key)
            elif batch := self._read(key):
                batches.append(batch)
        while batches and self._takes(batches):
            run = chained(batches, mark, self._pace.deltas)
            if not run:
                self._ask_for_filling()
                return True
            if not has_time():
                return False
            self._desk.check_declared()
            until = self._apply(run, mark)
            if not until:
                return True
            mark = until
            for covered in [one for one in batches if one.last <= mark]:
                self._desk.objects.delete_object(covered.claim_key)
            batches = [one for one in batches if one.last > mark]
        return True

    def _takes(self, batches: Sequence[Batch]) -> bool:
        """Return whether the next write is to be made here; else have it made elsewhere."""
        self.is_handed_over = self._large is not None and self._large.take(self._desk, batches)
        return not self.is_handed_over

    def _read(self, key: str) -> Batch | None:
        """Read a claim; a malformed one is set aside, one of a later release waits."""
        try:
            body = self._desk.objects.get_object(key)
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
        desk, size = self._desk, 0
        deltas: list[PlacedDelta] = []
        last: Batch | None = None
        for batch in run:
            try:
                more, more_bytes = desk.deltas_of(batch)
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
        if self._desk.images.is_filtered and not batch.append:
            self._put_images(batch, deltas)
        else:
            self.deltas += self._desk.put_deltas(batch, deltas)

    def _see_to(self, batch: Batch, error: LakeSyncError) -> None:
        """Have the loss of a batch whose object cannot be read repaired."""
        if batch.append:
            # Its events are otherwise only in the lake.
            body = self._desk.objects.get_object(batch.claim_key)
            self._set_aside(batch.claim_key, body, error)
        self._ask_for_filling()

    def _put_images(self, batch: Batch, deltas: Sequence[PlacedDelta]) -> None:
        """Put the rows that a batch touches as they are now, a few commits at a time."""
        desk = self._desk
        schema = desk.destination.schema_of(desk.table, batch.schema)
        after = batch.after
        images: dict[str, RowState | None] = {}
        for rows, last in _touched(deltas, batch.last):
            images |= desk.images.of(rows)
            if last < batch.last and len(images) < self._pace.rows:
                continue
            put = RowImages(desk.table, after, last, images, schema, horizon=desk.horizon())
            self.deltas += desk.put_rows(put)
            after, images = last, {}

    def _ask_for_filling(self) -> None:
        key = self._prefix + FILL
        self._desk.objects.put_object(key, FillClaim().to_json().encode(), "application/json")

    def _set_aside(self, key: str, body: bytes, error: LakeSyncError) -> None:
        """Move a claim that can never succeed to where people see it. Idempotent."""
        failure = {"reason": str(error), "claim": body.decode(errors="replace")}
        failed = DELIVERIES_FAILED + key.removeprefix(DELIVERIES)
        self._desk.objects.put_object(failed, json.dumps(failure).encode(), "application/json")
        self._desk.objects.delete_object(key)


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
