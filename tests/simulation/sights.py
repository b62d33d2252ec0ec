"""What one client may hold under sync rules: exactly what it may see, whoever wrote it."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

from tests.simulation.history import Violation
from tests.simulation.model import NOTHING, Key, Row, row_of, seen
from tests.simulation.oracle import own_only
from tests.simulation.stored import stored_of

if TYPE_CHECKING:
    from lakesync.client import Client
    from tests.simulation.clients import Device
    from tests.simulation.history import History
    from tests.simulation.oracle import Eyes
    from tests.simulation.world import World


def has_read_everything(client: Client, world: World) -> bool:
    at = stored_of(client).position()
    last = world.history.log[-1].stamp if world.history.log else 0
    done = not (at.is_reading or world.upkeep.is_down)
    return done and at.epoch == world.store.void("g1")[1] and at.cursor >= last


def check_sight(device: Device, world: World) -> None:
    """Hold the rows of a client that has read everything against the rules and its claims."""
    assert device.client is not None
    history, bases_of = world.history, bases(device.client)
    (eyes,) = world.rulings.eyes(device.link.claims)
    for key in {*bases_of, *history.of_row}:
        _check_row(device, key, bases_of.get(key, NOTHING), history, eyes)


def _check_row(device: Device, key: Key, base: Row, history: History, eyes: Eyes) -> None:
    row = history.row(key)

    def message() -> str:
        return f"{device.client_id} {key}: {base}, {row}, {eyes}"

    if not eyes.see(key[0], row):
        # Pages have passed every commit, those of its own writes too.
        if seen(key[0], base).exists:
            raise Violation("clients hold nothing that is hidden", message())
        return
    everything, base = base, eyes.shown(key[0], base)
    left_out = {name: one for name, one in everything.columns.items() if name not in base.columns}
    if not own_only(base._replace(columns=left_out), device.client_ids):
        raise Violation("clients hold nothing that is left out", message())
    if is_in_lake_only(history, device.client_id, key, base, eyes):
        return
    due = eyes.shown(key[0], row)
    if history.remembered(key[0], base) != history.remembered(key[0], due):
        raise Violation("clients hold all that they may see", message())


def is_in_lake_only(
    history: History, client_id: str, key: Key, base: Row, eyes: Eyes | None = None
) -> bool:
    """Return whether all that is missing of an event was trimmed before the client pulled.

    ``eyes`` are those of a client that is not sent every column.
    """
    if not history.appends(key[0]):
        return False
    behind = history.in_lake_only[client_id]
    known = history.of_row.get(key, ())
    old = [delta for delta in known if history.commit_of[delta.delta_id] <= behind]
    due = [delta for delta in known if delta not in old]
    rows = (
        row_of([*due, *seen]) for count in range(len(old) + 1) for seen in combinations(old, count)
    )
    return any(base == (eyes.shown(key[0], row) if eyes else row) for row in rows)


def bases(client: Client) -> dict[Key, Row]:
    """Return all rows of a client's file without its edits that wait."""
    return {key: row.known for key, row in stored_of(client).rows().items()}
