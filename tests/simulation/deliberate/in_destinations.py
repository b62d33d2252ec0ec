"""Faults in how declared destinations are claimed for, filled and delivered to."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lakesync.core.deliveries import claimed_last
from lakesync.core.destinations import Destinations
from lakesync.delivery.table_context import TableContext
from lakesync.delivery.table_delivery import Filling, TableDelivery
from lakesync.gateway.destination_admin import DestinationAdmin
from tests.simulation.deliberate.registry import Replaced, deliberate
from tests.simulation.themes import ANEW, FOLLOWED, SCATTERED

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lakesync.adapters.database import PlacedDelta
    from lakesync.core.deliveries import Batch, FillClaim
    from lakesync.core.destinations import Destination


@deliberate("a destination's claim is removed before its rows are there", SCATTERED)
def delivery_claim_removed_first() -> list[Replaced]:
    real = TableDelivery._apply

    def apply(self: TableDelivery, run: Sequence[Batch], mark: int) -> int:
        for batch in run:
            self._context.objects.delete_object(batch.claim_key)
        return real(self, run, mark)

    return [(TableDelivery, "_apply", apply)]


@deliberate("a filling leaves out rows that were changed meanwhile", FOLLOWED)
def filling_without_newer_rows() -> list[Replaced]:
    real = Filling._put_rows

    def put(self: Filling, images: Any, claim: FillClaim, *, is_last: bool = False) -> None:
        context = self._context
        stored = context.buffer.rows(
            context.gateway, [(context.table, row_id) for row_id in images]
        )
        newer = {row_id for (_, row_id), row in stored.items() if row.commit > claim.until}
        kept = {row_id: state for row_id, state in images.items() if row_id not in newer}
        real(self, kept, claim, is_last=is_last)

    return [(Filling, "_put_rows", put)]


@deliberate("a destination's mark moves past batches that wait still", FOLLOWED)
def mark_past_a_claim() -> list[Replaced]:
    real = TableContext.put_deltas

    def put(self: TableContext, batch: Batch, deltas: Sequence[PlacedDelta]) -> int:
        lasts = [claimed_last(key) for key in self.objects.list_objects(self.place.prefix)]
        return real(self, replace(batch, last=max([batch.last, *lasts])), deltas)

    return [(TableContext, "put_deltas", put)]


@deliberate("the claim of one destination is taken for another's", FOLLOWED)
def claimed_for_one_only() -> list[Replaced]:
    real = Destinations.wanting

    def wanting(self: Destinations, table: str) -> Iterator[Destination]:
        yield from list(real(self, table))[:1]

    return [(Destinations, "wanting", wanting)]


@deliberate("a destination that is filled anew keeps the rows that it may not see", ANEW)
def filling_removes_nothing() -> list[Replaced]:
    real = Filling._begin

    def begin(self: Filling) -> FillClaim:
        claim = replace(real(self), again=False, checked=None)
        self._save(claim)
        return claim

    return [(Filling, "_begin", begin)]


@deliberate("who declares a destination again takes any delivery for its filling", ANEW)
def any_delivery_is_a_filling() -> list[Replaced]:
    real = DestinationAdmin._ask_for_filling

    def ask(self: DestinationAdmin, place: Any) -> None:
        if not self._buffer.delivery_states(place.gateway, place.destination):
            real(self, place)

    return [(DestinationAdmin, "_ask_for_filling", ask)]
