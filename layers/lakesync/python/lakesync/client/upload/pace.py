"""How fast a push goes on, and when it stops instead of repeating itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from lakesync.client.upload.batches import BATCH_DELTAS_MAX
from lakesync.errors import InternalError

if TYPE_CHECKING:
    from lakesync.client.upload.receipts import Settled

RESTAMPS_MAX: Final = 3
"""How often one push stamps again before it reports the refusal instead."""


@dataclass(slots=True)
class Pace:
    """How large the next batch may be."""

    deltas_max: int = BATCH_DELTAS_MAX
    alone: bool = False
    """One local transaction at a time."""
    restamps: int = 0
    """Pushes in a row that ended in stamping again."""

    def go_on(self, settled: Settled) -> None:
        """Stop where pushing on would only repeat the same.

        Raises:
            LakeSyncError: why some must wait.
        """
        if settled.blocked is not None:
            raise settled.blocked
        if settled.stamped_wrong is not None:
            self.restamps += 1
            if self.restamps > RESTAMPS_MAX:
                raise settled.stamped_wrong
            return
        self.restamps = 0
        self.alone = False
        if not settled.accepted and not settled.quarantined:
            raise InternalError(
                "the gateway refused a whole push and named no delta; push again later"
            )
