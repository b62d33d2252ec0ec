"""Which checkpoints are kept, how far the log may be trimmed behind them, and their removal.

    1. the manifest is removed       from here no client begins with the checkpoint
    2. its chunks are removed        a client that still reads it is answered 410, and begins again

Law R4: ``docs/spec/retention.md``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from lakesync.checkpoint import manifest as names
from lakesync.errors import CursorExpired, NotFound
from lakesync.maintenance.checkpoint_build import PROGRESS_MS_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lakesync.checkpoint.store import Checkpoints
    from lakesync.core.clock import Stamp
    from lakesync.ports import ObjectStore, WallClock

LATEST_KEPT: Final = 2
"""Checkpoints that are kept, however old they are."""
KEEP_MS: Final = 24 * 3_600_000
"""How long any other is kept: longer than an interrupted first sync takes, and at least as long as
a build may be continued."""

_MARGIN_MS: Final = 3_600_000
"""How much longer chunks without a manifest are kept: a build that continues with them may be slow.
"""


@dataclass(frozen=True, slots=True)
class CleanReport:
    """The result of a removal."""

    objects: int = 0
    finished: bool = True
    """False if time ran out; the next call continues."""


class Keeper:
    """Keeps and cleans checkpoints of gateways. Any number may run at once."""

    def __init__(
        self, objects: ObjectStore, checkpoints: Checkpoints, *, wall_clock: WallClock
    ) -> None:
        self._objects = objects
        self._checkpoints = checkpoints
        self._wall_clock = wall_clock

    def kept(self, gateway: str, epoch: str) -> list[str]:
        """Return the checkpoints that are kept, oldest first.

        Raises:
            LakeSyncError: the store cannot be reached.
        """
        return self._kept(gateway, self._checkpoints.ids(gateway), epoch)

    def covered(self, gateway: str, epoch: str) -> Stamp:
        """Return the stamp up to which every kept checkpoint covers the log; 0 without any.

        Raises:
            LakeSyncError: the store cannot be reached.
        """
        return min(map(names.since_of, self.kept(gateway, epoch)), default=0)

    def clean(
        self, gateway: str, epoch: str, *, has_time: Callable[[], bool] = lambda: True
    ) -> CleanReport:
        """Remove what is not kept, and chunks that no manifest names. Idempotent, and safe to kill.

        Args:
            gateway: whose.
            epoch: the epoch of its buffer.
            has_time: called before each removal; False ends the call there.

        Raises:
            LakeSyncError: the store refused; what was removed stays removed.
        """
        removed = 0
        every = self._checkpoints.ids(gateway)
        kept = set(self._kept(gateway, every, epoch))
        doomed = [names.manifest_key(gateway, name) for name in every if name not in kept]
        doomed += self._without_manifest(gateway, kept)
        for key in doomed:
            if not has_time():
                return CleanReport(removed, finished=False)
            self._objects.delete_object(key)
            removed += 1
        return CleanReport(removed)

    def _kept(self, gateway: str, every: Sequence[str], epoch: str) -> list[str]:
        now_ms = self._wall_clock()
        ours = [name for name in every if self._is_of(gateway, name, epoch)]
        young = [name for name in ours if now_ms - names.began_ms_of(name) < KEEP_MS]
        return sorted({*ours[-LATEST_KEPT:], *young})

    def _is_of(self, gateway: str, checkpoint: str, epoch: str) -> bool:
        try:
            return self._checkpoints.manifest(gateway, checkpoint).epoch == epoch
        except (NotFound, CursorExpired):
            return False

    def _without_manifest(self, gateway: str, kept: set[str]) -> list[str]:
        """Get chunks of checkpoints that are not kept, except those that may belong to a build."""
        prefix = names.chunks_prefix(gateway)
        now_ms = self._wall_clock()

        def is_left_over(key: str) -> bool:
            checkpoint = key[len(prefix) :].partition("/")[0]
            if not names.is_checkpoint_id(checkpoint) or checkpoint in kept:
                return False
            return now_ms - names.began_ms_of(checkpoint) > PROGRESS_MS_MAX + _MARGIN_MS

        return [key for key in self._objects.list_objects(prefix) if is_left_over(key)]
