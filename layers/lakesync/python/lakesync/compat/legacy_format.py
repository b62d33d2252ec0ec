"""Pages for clients that keep no stamps: who applies their deltas in order ends with the rows.

A follower inserts a row that it must not hold yet, updates one that it must hold, and lets the last
delta win. So where the log alone would mislead it, a row is sent as it is now: deleted, inserted
bare, then updated whole, which is right for who holds it and for who does not. The first two are
stamped below all of the row: they lose to an edit that waits to be pushed, whose row is in place
already, and they spoil nothing for who merges by stamps.
Law F2: ``docs/spec/followers.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakesync.core.delta import GATEWAY_CLIENT, Op, known_delta
from lakesync.core.merge import fold, view
from lakesync.core.unmerge import as_one
from lakesync.core.visibility import rule_values
from lakesync.errors import Contention
from lakesync.wire.row_state import decode_row_state

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lakesync.core.clock import Stamp
    from lakesync.core.config import GatewayConfig
    from lakesync.core.delta import Delta
    from lakesync.core.merge import RowState
    from lakesync.core.visibility import Viewer
    from lakesync.ports import Buffer, RowKey, StoredRow


class InOrder:
    """Makes pages of one gateway for one follower, for as long as one request takes.

    Args:
        buffer: holds the rows.
        gateway: whose.
        config: its configuration.
        viewer: the follower's eyes.
        again: it may have been given these commits before.
        mine: its client id, if it may hold rows that it wrote; else empty.
    """

    def __init__(
        self,
        buffer: Buffer,
        gateway: str,
        config: GatewayConfig,
        viewer: Viewer,
        *,
        again: bool = False,
        mine: str = "",
    ) -> None:
        self._buffer = buffer
        self._gateway = gateway
        self._config = config
        self._viewer = viewer
        self._again = again
        self._mine = mine

    def of(self, deltas: Iterable[Delta], owed: Iterable[RowKey] = ()) -> list[Delta]:
        """Give what is sent in the place of a page's deltas. One read unit for each of its rows.

        Args:
            deltas: the page's.
            owed: rows that are sent as they are, whatever the log says.

        Raises:
            Contention: a row that the page wrote is just becoming visible; try again in a moment.
        """
        found, owing = list(deltas), dict.fromkeys(owed)
        by_row: dict[RowKey, list[Delta]] = {}
        for delta in found:
            by_row.setdefault((delta.table, delta.row_id), []).append(delta)
        states = [key for key in {**by_row, **owing} if not self._config.appends(key[0])]
        held = self._buffer.rows(self._gateway, states)
        instead = {
            key: self._row(key, of_row, held.get(key), holds=key in owing)
            for key, of_row in by_row.items()
        }
        logged = [
            sent
            for delta in found
            for sent in _in_place(delta, by_row, instead[delta.table, delta.row_id])
        ]
        rest = [key for key in owing if key not in by_row]
        # What is hidden or was never there is deleted.
        return logged + [
            sent
            for key in rest
            for sent in (self._whole(key, held[key]) if key in held else [_delete(key, 1)])
        ]

    def hidden(self, keys: Iterable[RowKey]) -> list[RowKey]:
        """Give those rows that the follower may not see; one read unit each."""
        if self._viewer.sees_everything:
            return []
        wanted = [key for key in keys if not self._config.appends(key[0])]
        held = self._buffer.rows(self._gateway, wanted)
        return [
            key
            for key, stored in held.items()
            if not self._sees(key, decode_row_state(stored.state))
        ]

    def _row(
        self, key: RowKey, deltas: list[Delta], stored: StoredRow | None, *, holds: bool
    ) -> list[Delta] | None:
        """Give what is sent instead of a row's deltas; None if they are right as they are."""
        holds = holds or self._again or any(delta.client_id == self._mine for delta in deltas)
        if stored is None:  # an event, which is its own row
            return [_delete(key, 1), *deltas] if holds else None
        state = decode_row_state(stored.state)
        if not all(_is_merged(state, delta) for delta in deltas):
            raise Contention("a row is just becoming visible; try again in a moment")
        if not holds and (not self._sees(key, state) or _leads_to(deltas, state)):
            # A row that is hidden by now is deleted further on.
            return None
        return self._whole(key, stored)

    def _whole(self, key: RowKey, stored: StoredRow) -> list[Delta]:
        state = decode_row_state(stored.state)
        if not self._sees(key, state):
            return [_delete(key, stored.commit)]
        return _as_it_is(key, state)

    def _sees(self, key: RowKey, state: RowState) -> bool:
        values = rule_values(state, self._config.rules.columns(key[0]))
        return self._viewer.sees(key[0], values)


def _in_place(
    delta: Delta, by_row: dict[RowKey, list[Delta]], instead: list[Delta] | None
) -> list[Delta]:
    if instead is None:
        return [delta]
    return instead if delta is by_row[delta.table, delta.row_id][-1] else []


def _is_merged(state: RowState, delta: Delta) -> bool:
    """Tell whether a row state has met a delta, as far as that can be seen of it."""
    hlc = delta.hlc
    if delta.client_id == GATEWAY_CLIENT or hlc <= state.deleted:
        return True
    mine = (hlc, delta.client_id)
    written = [state.columns[name][:2] for name, _ in delta.columns if name in state.columns]
    if delta.op is Op.INSERT:
        # One that the gateway made of the whole row bears the stamp of its last write.
        return hlc <= state.alive or mine in written
    return delta.op is Op.UPDATE and all(mine <= other for other in written)


def _leads_to(deltas: list[Delta], state: RowState) -> bool:
    """Tell whether a row's deltas, applied in order, lead to the row as it is now.

    An insert finds no row and an update finds one; else they say nothing of what was before.
    """
    shown = view(state)
    if shown is None:
        return True  # deleted here or further on
    exists = deltas[0].op is Op.UPDATE
    is_whole, values = False, {}
    for delta in deltas:
        if delta.op is Op.DELETE:
            exists = False
        elif (delta.op is Op.INSERT) is exists:
            return False
        elif delta.op is Op.INSERT:
            exists, is_whole, values = True, True, dict(delta.columns)
        else:
            values.update(delta.columns)
    if not exists:
        return False
    if is_whole:
        return values == shown
    # A row that was never inserted, or whose insert was deleted, began with an update.
    return state.alive > 0 and all(shown.get(name) == value for name, value in values.items())


def rows_of(deltas: Iterable[Delta], *, again: bool) -> list[Delta]:
    """Give whole rows in order, out of deltas that merge to them.

    Args:
        deltas: all of each row.
        again: whoever reads them may hold some; else each row is one insert.
    """
    by_row: dict[RowKey, list[Delta]] = {}
    for delta in deltas:
        by_row.setdefault((delta.table, delta.row_id), []).append(delta)
    found: list[Delta] = []
    for key, of_row in by_row.items():
        state = fold(of_row)
        if view(state) is None:
            found.append(_delete(key, max(state.deleted, 1)))
        else:
            found += _as_it_is(key, state) if again else as_one(*key, state)
    return found


def _as_it_is(key: RowKey, state: RowState) -> list[Delta]:
    below = max(state.deleted, 1)
    bare = known_delta(Op.INSERT, *key, GATEWAY_CLIENT, below + 1, ())
    whole = [delta._replace(op=Op.UPDATE) for delta in as_one(*key, state)]
    return [_delete(key, below), bare, *whole]


def _delete(key: RowKey, at: Stamp) -> Delta:
    return known_delta(Op.DELETE, *key, GATEWAY_CLIENT, at, ())
