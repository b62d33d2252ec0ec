"""Deltas of followers: the form in which rows are sent to them, and how their pushes are taken.

Clients that keep no stamps apply pages in order: their deltas give the rows. A follower must be
sent an INSERT only of a row that it lacks, an UPDATE only of a row that it has, and the last delta
wins. So where the log alone would give it a wrong row, the row is sent as it is now: a DELETE, an
INSERT without columns, then an UPDATE of every column. This is right whether it has the row or not.
The first two have stamps below the whole row: they lose to an edit that waits to be pushed, whose
row exists already, and they change nothing for clients that merge by stamps.
Law F2: ``docs/spec/followers.md``.

A follower drops its edits at 200, and repeats them up to ten times at any other status. So if one
delta is refused, the whole answer is a refusal; the other deltas are accepted, and are duplicates
when they are repeated. Rows for which the follower then has other values than the gateway are sent
as they are.

Values are taken as existing clients intend them: their SQLite knows no booleans, objects or lists.
A value that does not fit the type of its column is converted if that loses nothing. Otherwise it is
accepted unchanged, unless the gateway is strict.
Laws F1, F6 and F7: ``docs/spec/followers.md``.
"""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from lakesync.compat.follower_progress import (
    SKIPPED_DELIVERIES,
    Follower,
    Resend,
    is_follower,
    pack,
    receipt_cursor,
    resending,
    unpack,
    viewer_of,
)
from lakesync.core.clock import stamp_ms
from lakesync.core.column_types import fits
from lakesync.core.delta import GATEWAY_CLIENT, Op, canonical, known_delta, parse, recanonical
from lakesync.core.merge import fold, view, written
from lakesync.core.messages import OutcomeKind
from lakesync.core.names import first_spellings, folded
from lakesync.core.visibility import rule_values
from lakesync.errors import ClockDrift, Contention, NameTaken, ValidationFailed
from lakesync.wire.records import decode_row_state

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from lakesync.core.clock import Stamp
    from lakesync.core.config import GatewayConfig
    from lakesync.core.delta import CanonicalJson, Delta
    from lakesync.core.merge import RowState
    from lakesync.core.messages import DeltaOutcome, Push, PushReceipt
    from lakesync.core.visibility import Viewer
    from lakesync.gateway.push import PushService
    from lakesync.ports import Buffer, RowKey, StoredRow

# --- the form of pages ----------------------------------------------------------------------------


_NESTED: Final = (b"{", b"[")


class LegacyFormat:
    """Makes pages of one gateway for one follower, for the duration of one request.

    Args:
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
    if instead is None:
        return [delta]
    return instead if delta is by_row[delta.table, delta.row_id][-1] else []


def _is_merged(state: RowState, delta: Delta) -> bool:
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


# --- pushes ---------------------------------------------------------------------------------------


RETRY_MS_MAX: Final = 60_000
"""Existing clients repeat a refused edit within half a minute. An edit that was too new and is not
repeated by then is abandoned."""
_TRIES_MAX: Final = 3


class FollowingPushes:
    """Answers pushes: receipts of followers have a cursor that is safe for them."""

    def __init__(self, pushes: PushService, buffer: Buffer) -> None:
        self._pushes = pushes
        self._buffer = buffer

    def push(self, gateway: str, push: Push) -> PushReceipt:
        """Make deltas durable; see `lakesync.gateway.push.PushService.push`.

        Additional cost for a follower: two read units, and with rules one for each row; one write
        unit if something was refused, was a duplicate, or is hidden from it.

        Returns:
            The receipt, if the whole push was accepted.

        Raises:
            LakeSyncError: the reason why one delta was not; durable deltas are duplicates when
                repeated.
        """
        if not is_follower(push):
            return self._pushes.push(gateway, push)
        config = self._buffer.config(gateway)
        push = replace(with_intended_values(self._buffer, gateway, config, push), revives=True)
        receipt = self._pushes.push(gateway, push)
        known = self._note(gateway, push, self._left_behind(gateway, config, push, receipt))
        _check_accepted(receipt)
        return replace(receipt, server_hlc=receipt_cursor(known))

    def _left_behind(
        self, gateway: str, config: GatewayConfig, push: Push, receipt: PushReceipt
    ) -> list[Resend]:
        """Return the rows of which the follower now has other values than it should."""
        outcomes = {outcome.index: outcome for outcome in receipt.outcomes}
        if any(outcome.kind is OutcomeKind.REFUSED for outcome in receipt.outcomes):
            # The whole push is repeated, and stays on the device until then.
            spelled = self._first_spellings(gateway, config, outcomes.values())
            rows = {_spelled(row, spelled): 0 for item in push.unreadable if (row := item.row)}
            for index, delta in push.deltas:
                if config.appends(delta.table) and not _is_refused(outcomes.get(index)):
                    continue
                key = _spelled((delta.table, delta.row_id), spelled)
                drifts = index in outcomes and isinstance(outcomes[index].error, ClockDrift)
                accepted_ms = stamp_ms(delta.hlc) + RETRY_MS_MAX if drifts else 0
                rows[key] = max(rows.get(key, 0), accepted_ms)
            return [Resend(*key, ms, SKIPPED_DELIVERIES) for key, ms in rows.items()]
        keys = {
            (delta.table, delta.row_id): index in outcomes
            for index, delta in push.deltas
            if not config.appends(delta.table)
        }
        viewer = viewer_of(config, push.claims)
        hidden = LegacyFormat(self._buffer, gateway, config, viewer).hidden(keys)
        return [Resend(*key) for key in {**dict.fromkeys(hidden), **_duplicates(keys)}]

    def _first_spellings(
        self, gateway: str, config: GatewayConfig, outcomes: Iterable[DeltaOutcome]
    ) -> dict[str, str]:
        """Return the spelling in force of each table, by its folded name.

        A device has all spellings as one table. The gateway has no row under any other spelling: a
        resend under one would make the device delete the row that it has.
        """
        if any(isinstance(outcome.error, NameTaken) for outcome in outcomes):
            config = self._buffer.config(gateway)  # this very push may have made the table
        return first_spellings([*config.schemas, *config.tables])

    def _note(self, gateway: str, push: Push, rows: list[Resend]) -> Follower | None:
        for _ in range(_TRIES_MAX):
            stored = self._buffer.client_state(gateway, push.client_id)
            known = unpack(stored)
            if not rows:
                return known
            before = known or Follower()
            tables = tuple(sorted({*before.tables, *(row.table for row in rows)}))
            after = resending(replace(before, tables=tables), rows)
            if after == known or self._buffer.save_client_state(
                gateway, push.client_id, stored, pack(after)
            ):
                return after
        raise Contention("requests of this client crossed; try again in a moment")


def _duplicates(keys: dict[tuple[str, str], bool]) -> dict[tuple[str, str], None]:
    return {key: None for key, is_duplicate in keys.items() if is_duplicate}


def _spelled(row: tuple[str, str], spelled: dict[str, str]) -> tuple[str, str]:
    table, row_id = row
    return spelled.get(folded(table), table), row_id


def _is_refused(outcome: DeltaOutcome | None) -> bool:
    return outcome is not None and outcome.kind is OutcomeKind.REFUSED


def _check_accepted(receipt: PushReceipt) -> None:
    """`ClockDrift` is raised first, because then the client only has to wait."""
    refused = [outcome for outcome in receipt.outcomes if outcome.error is not None]
    refused.sort(key=lambda outcome: not isinstance(outcome.error, ClockDrift))
    for outcome in refused:
        error, path = outcome.error, f"deltas[{outcome.index}]"
        assert error is not None  # noqa: S101 - chosen so
        if not (error.field or "").startswith(path):
            error = copy(error)
            error.field = f"{path}.{error.field}" if error.field else path
        raise error


# --- values ---------------------------------------------------------------------------------------


_BOOLEANS: Final = {b"0": b"false", b"1": b"true"}
_JSON_TEXT: Final = (b'"{', b'"[')


def with_intended_values(buffer: Buffer, gateway: str, config: GatewayConfig, push: Push) -> Push:
    """Return a push with its values as intended.

    Cost: one read unit for each row into which text of an object or a list is written.
    """
    keys = [
        (delta.table, delta.row_id)
        for _, delta in push.deltas
        if not config.appends(delta.table)
        and any(value[:2] in _JSON_TEXT for _, value in delta.columns)
    ]
    stored = buffer.rows(gateway, keys) if keys else {}
    known: dict[RowKey, Mapping[str, CanonicalJson]] = {
        key: {name: write[2] for name, write in decode_row_state(row.state).columns.items()}
        for key, row in stored.items()
    }
    deltas = [
        (index, _intended_delta(config, delta, known.get((delta.table, delta.row_id), {})))
        for index, delta in push.deltas
    ]
    return replace(push, deltas=tuple(deltas), typed=config.strict)


def _intended_delta(
    config: GatewayConfig, delta: Delta, known: Mapping[str, CanonicalJson]
) -> Delta:
    schema = config.schemas.get(delta.table)
    types = {column.name: column.type for column in schema.columns} if schema else {}
    columns = tuple(
        [
            (name, _intended_value(types.get(name), value, known.get(name)))
            for name, value in delta.columns
        ]
    )
    if columns == delta.columns:
        return delta
    op, table, row_id, client_id, hlc, *_ = delta
    return known_delta(op, table, row_id, client_id, hlc, columns)


def _intended_value(
    type_name: str | None, value: CanonicalJson, known: CanonicalJson | None
) -> CanonicalJson:
    if type_name == "boolean":
        return _BOOLEANS.get(value, value)
    if type_name == "number" and value[:1] == b'"':
        return _number(value)
    if value[:2] in _JSON_TEXT:
        meant = _nested(value)
        # Elsewhere it is text, unless it equals what the client was sent for an object or a list.
        if type_name == "json" or (meant == known and canonical(meant.decode()) == value):
            return meant
    return value


def _number(text: CanonicalJson) -> CanonicalJson:
    """Return the number that a text spells in its canonical form; any other text unchanged."""
    try:
        is_number = recanonical(text[1:-1]) == text[1:-1] and fits("number", text[1:-1])
    except ValidationFailed:
        return text
    return text[1:-1] if is_number else text


def _nested(text: CanonicalJson) -> CanonicalJson:
    """Return the object or list that a text spells; the text if it spells none."""
    try:
        return canonical(parse(parse(text).encode()))
    except ValidationFailed:
        return text
