"""Faults in what a client tells of lost writes."""

from __future__ import annotations

from typing import Any

from lakesync.client.storage.own_writes import LostWrites, PendingEcho, Unread
from lakesync.core.visibility import EVERYTHING
from tests.simulation.deliberate.registry import Replaced, deliberate
from tests.simulation.themes import UNKNOWING, UNKNOWING_RULED


@deliberate("under rules, lost writes are not looked for", UNKNOWING_RULED)
def losses_are_not_compared_under_rules() -> list[Replaced]:
    real = LostWrites.compare

    def compare(self: LostWrites, *given: Any) -> None:
        if PendingEcho(self._file).is_empty and self._file.position().scope in {"", EVERYTHING}:
            real(self, *given)

    return [(LostWrites, "compare", compare)]


@deliberate("who replaced a value that he had never read is not told", UNKNOWING)
def winners_are_not_notified() -> list[Replaced]:
    return [(LostWrites, "_won", lambda *_: ())]


@deliberate("who wrote too late to be in any page is not told", UNKNOWING)
def losers_are_not_notified() -> list[Replaced]:
    return [(LostWrites, "_lost", lambda *_: ())]


@deliberate("of what a row was before an accepted write nothing is noted", UNKNOWING)
def accepted_writes_are_not_noted() -> list[Replaced]:
    return [(Unread, "accepted", lambda *_: None)]


@deliberate("values that were read before the edit count as lost", UNKNOWING)
def what_was_read_is_lost_too() -> list[Replaced]:
    real = LostWrites._replaced

    def replaced(self: LostWrites, row: Any, *given: Any) -> Any:
        nothing = row.shown._replace(columns={})
        return real(self, row._replace(shown=nothing), *given)

    return [(LostWrites, "_replaced", replaced)]
