"""Faults in what a process makes of heads that it has just read.

That what was seen a moment ago is in the page (`lakesync.log.read`) shows in scenarios only where
answers are lost in one moment and one process alone goes on asking, once in hundreds of seeds.
``tests/gateway/test_clocks_apart.py`` proves it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakesync.log import log_cache, read
from lakesync.log.log_cache import RecentHeads, _Recent
from tests.simulation.deliberate.registry import Replaced, deliberate
from tests.simulation.themes import APART, READERS, RULED_READERS

if TYPE_CHECKING:
    from lakesync.core.clock import Stamp


@deliberate("heads are not read again for seconds", READERS)
def recent_heads_are_old() -> list[Replaced]:
    return [(log_cache, "RAISED_EVERY_MS", 20_000)]


@deliberate("a quiet gateway's heads are not read again for its last page", READERS)
def quiet_gateways_are_not_read_again() -> list[Replaced]:
    return [(RecentHeads, "_may_end", lambda *_: True)]


@deliberate("who asks for a page up to a stamp is given one that ends below", READERS)
def recent_heads_suffice_for_everybody() -> list[Replaced]:
    real = _Recent.suffices

    def suffices(self: _Recent, since: Stamp, at_least: Stamp) -> bool:
        del at_least
        return real(self, since, 0)

    return [(_Recent, "suffices", suffices)]


@deliberate("a process whose clock is behind takes a burst that is over for a load", APART)
def clocks_that_are_apart_are_not_noticed() -> list[Replaced]:
    return [(read, "CLOCKS_APART_MS", 60_000)]


@deliberate("what else changed is not looked at, if heads were just read", RULED_READERS)
def recent_heads_stand_whatever_changed() -> list[Replaced]:
    return [(_Recent, "is_still_so", lambda *_: True)]
