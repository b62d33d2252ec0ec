"""Lost writes: whoever can know of one is told, and nobody who overwrote what he had read.

Written from law K27 of ``docs/spec/client.md`` alone. What a client had read when it made an edit
is its cursor at that moment; what its edit replaced is decided by the order of commits.

Verified for columns whose values no two edits share, in rows that nobody deleted, and between edits
behind which neither client was sent whole rows. Not verified: deletions, whole rows, edits that
were stamped again, rows that rules hid from one of the two, rows that came into sight as they were
by then, files and buffers that were lost, gateways that were set up anew.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final, NamedTuple

from tests.simulation.history import Violation
from tests.simulation.oracle import Moments
from tests.simulation.stored import stored_of

if TYPE_CHECKING:
    from lakesync.client import Client, LostWrite
    from lakesync.core.delta import Delta
    from lakesync.core.messages import Pull, PullPage
    from tests.simulation.clients import Device
    from tests.simulation.model import Key
    from tests.simulation.world import World

COLUMNS: Final = ("size", "tags", "title")
"""Those to which no two edits write the same."""


class Made(NamedTuple):
    """What was true when an edit was made."""

    cursor: int
    """Up to here its client had read."""
    ms: int


class Losses:
    """What is needed to tell who knew what."""

    def __init__(self) -> None:
        self._made: dict[str, Made] = {}
        self._whole_ms: dict[str, int] = defaultdict(int)
        self._read_whole: set[str] = set()
        """Clients that are sent whole rows, or read the log again, and are not at the end yet."""
        self._answered: set[str] = set()
        """Clients that a page was sent to."""

    def edited(self, client: Client, delta: Delta, ms: int) -> None:
        """Note an edit, just after it was made."""
        at = stored_of(client).position()
        if not at.is_reading:
            self._made[delta.delta_id] = Made(at.cursor, ms)

    def paged(self, pull: Pull, page: PullPage) -> None:
        """Note a page that does not say which of two writes came first.

        It is of whole rows, or its client reads the log again, as after a restore, even of a buffer
        that lost nothing: each page then replaces the rows that the client has.
        """
        client_id = pull.client_id
        is_again = not pull.since and client_id in self._answered
        self._answered.add(client_id)
        if page.snapshot or page.resync is not None or is_again:
            self._read_whole.add(client_id)

    def read_to_the_end(self, client_id: str, ms: int) -> None:
        """Note that a sync went well."""
        if client_id in self._read_whole:
            self._read_whole.remove(client_id)
            self._whole_ms[client_id] = ms

    def made(self, delta: Delta) -> Made | None:
        """Return what was true when an edit was made, if no whole rows came behind it."""
        made = self._made.get(delta.delta_id)
        is_sure = delta.client_id not in self._read_whole
        return made if is_sure and made and made.ms > self._whole_ms[delta.client_id] else None


def check_losses(world: World) -> None:
    """Hold what clients were told against what was lost."""
    history = world.history
    if history.lost or world.scenario.anew:
        return
    devices = {device.client_id: device for device in world.devices if device.is_original}
    reported = {
        name: device.client.conflicts().unwrap()
        for name, device in devices.items()
        if device.client is not None
    }
    for key in history.of_row:
        if not history.appends(key[0]):
            _check_row(key, world, devices, reported)


def _check_row(
    key: Key, world: World, devices: dict[str, Device], reported: dict[str, list[LostWrite]]
) -> None:
    history = world.history
    logged = sorted(history.of_row[key], key=lambda delta: history.commit_of[delta.delta_id])
    accepted = [delta for name in devices for delta in history.accepted_of[name, *key]]
    if any(delta.op.name == "DELETE" for delta in (*logged, *accepted)):
        return
    if any(key in device.session.taken_back for device in world.devices):
        return
    for column in COLUMNS:
        stands: Delta | None = None
        for delta in logged:
            if column not in dict(delta.columns):
                continue
            if stands is not None and _rank(delta) > _rank(stands):
                _check_pair(key, column, (stands, delta), world, devices, reported)
            if stands is None or _rank(delta) > _rank(stands):
                stands = delta
        for delta in accepted:
            _check_late(key, column, delta, world, devices, reported)


def _rank(delta: Delta) -> tuple[int, bytes]:
    return delta.hlc, delta.client_id.encode()


def _check_late(
    key: Key,
    column: str,
    late: Delta,
    world: World,
    devices: dict[str, Device],
    reported: dict[str, list[LostWrite]],
) -> None:
    """Check that the author of a write that changed nothing, as a later one was there, is told."""
    history, author = world.history, devices[late.client_id]
    if late.delta_id in history.deltas or column not in dict(late.columns):
        return
    # What its author wrote over himself is no loss, whether a receipt or a page told him of that.
    logged = [one for one in history.of_row[key] if one.client_id == late.client_id]
    written = [*logged, *history.accepted_of[late.client_id, *key]]
    own = [one for one in written if column in dict(one.columns)]
    if max(one.hlc for one in own) > late.hlc or world.losses.made(late) is None:
        return
    if not _see_all(key, column, (author,), world):
        return
    world.count("late write, with rules" if world.rulings.were_there else "late write")
    if not any(
        (one.table, one.row_id, one.column, one.own_stamp) == (*key, column, late.hlc)
        for one in reported[late.client_id]
    ):
        raise Violation("a lost write is told", f"{key} {column}: {late}, {reported}")


def _check_pair(
    key: Key,
    column: str,
    pair: tuple[Delta, Delta],
    world: World,
    devices: dict[str, Device],
    reported: dict[str, list[LostWrite]],
) -> None:
    """Check who was told of a write and of the one that replaced it at the gateway."""
    lost, won = pair
    author, winner = devices.get(lost.client_id), devices.get(won.client_id)
    if author is None or winner is None or author is winner:
        return
    if not _see_all(key, column, (author, winner), world):
        return
    losses = world.losses
    made = losses.made(won)
    if losses.made(lost) is None or made is None:
        return
    first = min(world.history.commit_of[delta.delta_id] for delta in world.history.of_row[key])
    if world.rulings.were_there and made.cursor < first:
        return  # where rules filter, a new row comes as it is by then
    about = [(*key, column)]
    by_winner = [
        one for one in reported[won.client_id]
        if (one.table, one.row_id, one.column) in about
        and ((one.other_stamp, one.other_client) == (lost.hlc, lost.client_id)
             # One write of one's own has one conflict: with the latest write of the others.
             or (one.own_stamp >= won.hlc and one.other_stamp > lost.hlc))
    ]  # fmt: skip
    by_author = [
        one for one in reported[lost.client_id]
        if (one.table, one.row_id, one.column) in about and one.own_stamp == lost.hlc
    ]  # fmt: skip
    if made.cursor >= world.history.commit_of[lost.delta_id]:
        world.count("overwritten knowingly")
        if any(one.own_stamp == won.hlc for one in by_winner):
            raise Violation("what was read is no lost write", f"{key} {column}: {lost}, {won}")
        return
    world.count("lost write, with rules" if world.rulings.were_there else "lost write")
    if not by_winner and not by_author:
        raise Violation("a lost write is told", f"{key} {column}: {lost}, {won}, {reported}")


def _see_all(key: Key, column: str, devices: tuple[Device, ...], world: World) -> bool:
    """Return whether clients may see a row, and its column, as it was at each of its commits."""
    if not world.rulings.were_there:
        return True
    history = world.history
    commits = [(history.commit_of[delta.delta_id], delta) for delta in history.of_row[key]]
    moments = Moments(commits).since(0)
    for device in devices:
        (eyes,) = world.rulings.eyes(device.link.claims)
        if column in eyes.left_out(key[0]):
            return False
        if not all(eyes.see(key[0], row) for row in moments if row.exists):
            return False
    return True
