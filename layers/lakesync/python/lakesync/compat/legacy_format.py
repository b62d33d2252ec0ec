"""Pages for clients that keep no stamps: applied in order, their deltas give the rows.

A follower must be sent an INSERT only of a row that it lacks, an UPDATE only of a row that it has,
and the last delta wins. So where the log alone would give it a wrong row, the row is sent as it is
now: a DELETE, an INSERT without columns, then an UPDATE of every column. This is right whether it
has the row or not. The first two have stamps below the whole row: they lose to an edit that waits
to be pushed, whose row exists already, and they change nothing for clients that merge by stamps.
Law F2: ``docs/spec/followers.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lakesync.core.delta import GATEWAY_CLIENT, Op, known_delta
from lakesync.core.merge import fold, view, written
from lakesync.core.values import canonical
from lakesync.core.visibility import rule_values
from lakesync.errors import Contention
from lakesync.wire.row_state import decode_row_state

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from lakesync.core.clock import Stamp
    from lakesync.core.config import GatewayConfig
    from lakesync.core.delta import Delta
    from lakesync.core.merge import RowState
    from lakesync.core.values import CanonicalJson
    from lakesync.core.visibility import Viewer
    from lakesync.ports import Buffer, RowKey, StoredRow

_NESTED: Final = (b"{", b"[")


class LegacyFormat:
    """Makes pages of one gateway for one follower, for the duration of one request.

    Args:
        buffer: the store of the rows.
        gateway: whose.
        config: its configuration.
        viewer: the rules and claims that decide what the follower sees.
        again: it may have been sent these commits before.
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

    def log_page(self, deltas: list[Delta], resend: Collection[RowKey] = ()) -> list[list[Delta]]:
        """Return what is sent in place of logged deltas, in lists that must not be divided.

        One read unit for each row.

        Args:
            deltas: the log's.
            resend: rows for which the follower may have other values than the gateway.

        Raises:
            Contention: a row that the page wrote is becoming visible; try again in a moment.
        """
        by_row: dict[RowKey, list[Delta]] = {}
        for delta in deltas:
            by_row.setdefault((delta.table, delta.row_id), []).append(delta)
        stored = self._buffer.rows(self._gateway, self._with_states(by_row))
        instead = {
            key: self._row(key, of_row, stored.get(key), holds=key in resend)
            for key, of_row in by_row.items()
        }
        return [
            _texts(sent)
            for delta in deltas
            for sent in [_in_place(delta, by_row, instead[delta.table, delta.row_id])]
            if sent
        ]

    def rows(self, keys: Collection[RowKey]) -> list[list[Delta]]:
        """Return rows as they are; one read unit each. Hidden and missing rows are deleted."""
        stored = self._buffer.rows(self._gateway, self._with_states(keys))
        return [
            _texts(
                self._whole(key, decode_row_state(row.state), row.commit)
                if row
                else [_delete(key, 1)]
            )
            for key, row in ((key, stored.get(key)) for key in keys)
        ]

    def hidden(self, keys: Iterable[RowKey]) -> list[RowKey]:
        """Return those rows that the follower may not see; one read unit each."""
        if self._viewer.sees_every_row:
            return []
        stored = self._buffer.rows(self._gateway, self._with_states(keys))
        return [
            key for key, row in stored.items() if not self._sees(key, decode_row_state(row.state))
        ]

    def _with_states(self, keys: Iterable[RowKey]) -> list[RowKey]:
        return [key for key in keys if not self._config.appends(key[0])]

    def _row(
        self, key: RowKey, deltas: list[Delta], stored: StoredRow | None, *, holds: bool
    ) -> list[Delta] | None:
        """Return what is sent instead of a row's deltas; None if they are right as they are."""
        holds = holds or self._again or any(delta.client_id == self._mine for delta in deltas)
        if stored is None:  # an event, which is its own row
            return [_delete(key, 1), *deltas] if holds else None
        state = decode_row_state(stored.state)
        if not all(_is_merged(state, delta) for delta in deltas):
            raise Contention("a row is becoming visible; try again in a moment")
        is_seen = self._sees(key, state)
        if not is_seen and self._config.as_read(key[0], state) is not state:
            # An update follows after the delete, or came before it.
            return self._whole(key, state, stored.commit)
        shown = self._viewer.shown_state(key[0], state)
        if not holds and (not is_seen or _leads_to(deltas, shown)):
            # A row that is hidden by now is deleted later in the log.
            return None
        return self._whole(key, state, stored.commit)

    def _whole(self, key: RowKey, state: RowState, commit: Stamp) -> list[Delta]:
        shown = self._viewer.shown_state(key[0], state)
        if view(shown) is None or not self._sees(key, state):
            return [_delete(key, commit)]
        return _as_it_is(key, shown)

    def _sees(self, key: RowKey, state: RowState) -> bool:
        columns = self._config.rules.columns(key[0])
        values = rule_values(self._config.as_read(key[0], state), columns)
        return self._viewer.sees(key[0], values)


def _in_place(
    delta: Delta, by_row: dict[RowKey, list[Delta]], instead: list[Delta] | None
) -> list[Delta]:
    """Return what is sent in a delta's place; a row sent instead is sent at its last delta."""
    if instead is None:
        return [delta]
    return instead if delta is by_row[delta.table, delta.row_id][-1] else []


def _is_merged(state: RowState, delta: Delta) -> bool:
    """Return whether a row state includes a delta, as far as the state shows it."""
    hlc = delta.hlc
    if delta.client_id == GATEWAY_CLIENT or hlc <= state.deleted:
        return True
    mine = (hlc, delta.client_id)
    written = [state.columns[name][:2] for name, _ in delta.columns if name in state.columns]
    if delta.op is Op.INSERT:
        # An INSERT that the gateway made of a whole row bears the stamp of the row's last write.
        return hlc <= state.alive or mine in written
    return delta.op is Op.UPDATE and all(mine <= other for other in written)


def _leads_to(deltas: list[Delta], state: RowState) -> bool:
    """Return whether a row's deltas, applied in order, lead to the row as it is now.

    An INSERT requires that the row does not exist, and an UPDATE that it does. Nothing else is
    assumed about the earlier row.
    """
    shown = view(state)
    if shown is None:
        return True  # deleted here or later in the log
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


def rows_of(deltas: Iterable[Delta], config: GatewayConfig, *, again: bool) -> list[list[Delta]]:
    """Return whole rows, each in one list, from deltas that merge to them.

    Args:
        deltas: all of each row.
        config: the configuration with their tables.
        again: the client may have some of them; else each row is one INSERT.
    """
    by_row: dict[RowKey, list[Delta]] = {}
    for delta in deltas:
        by_row.setdefault((delta.table, delta.row_id), []).append(delta)
    rows = [(key, config.as_read(key[0], fold(of_row))) for key, of_row in by_row.items()]
    return [
        _texts(
            [_delete(key, max(state.deleted, 1))] if view(state) is None
            else _as_it_is(key, state) if again
            else _whole_row(Op.INSERT, key, state)
        )
        for key, state in rows
    ]  # fmt: skip


def _as_it_is(key: RowKey, state: RowState) -> list[Delta]:
    below = max(state.deleted, 1)
    bare = known_delta(Op.INSERT, *key, GATEWAY_CLIENT, below + 1, ())
    return [_delete(key, below), bare, *_whole_row(Op.UPDATE, key, state)]


def _whole_row(op: Op, key: RowKey, state: RowState) -> list[Delta]:
    """Return all of a row as one delta; what does not fit into that follows as updates."""
    writes = [(hlc, client_id) for hlc, client_id, _ in state.columns.values()]
    hlc, client_id = max([*writes, (state.alive, GATEWAY_CLIENT)])
    columns = ((name, register[2]) for name, register in state.columns.items())
    return list(written(op, *key, client_id, hlc, columns))


def _texts(deltas: list[Delta]) -> list[Delta]:
    """Return objects and lists as JSON text: existing clients cannot bind them to a statement."""
    return [
        delta._replace(columns=tuple([(name, _text(value)) for name, value in delta.columns]))
        if any(value[:1] in _NESTED for _, value in delta.columns)
        else delta
        for delta in deltas
    ]


def _text(value: CanonicalJson) -> CanonicalJson:
    return canonical(value.decode()) if value[:1] in _NESTED else value


def _delete(key: RowKey, at: Stamp) -> Delta:
    return known_delta(Op.DELETE, *key, GATEWAY_CLIENT, at, ())
