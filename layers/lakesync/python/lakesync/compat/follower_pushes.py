"""Pushes of followers: their receipts, their refusals, and the rows that these leave different.

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
from lakesync.compat.legacy_format import LegacyFormat
from lakesync.core.clock import stamp_ms
from lakesync.core.column_types import fits
from lakesync.core.delta import known_delta
from lakesync.core.messages import OutcomeKind
from lakesync.core.names import first_spellings, folded
from lakesync.core.values import canonical, parse, recanonical
from lakesync.errors import ClockDrift, Contention, NameTaken, ValidationFailed
from lakesync.wire.row_state import decode_row_state

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from lakesync.core.config import GatewayConfig
    from lakesync.core.delta import Delta
    from lakesync.core.messages import DeltaOutcome, Push, PushReceipt
    from lakesync.core.values import CanonicalJson
    from lakesync.gateway.push import PushService
    from lakesync.ports import Buffer, RowKey

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
        push = replace(as_meant(self._buffer, gateway, config, push), revives=True)
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
    """Refuse a push of which anything was refused.

    Raises:
        LakeSyncError: why; `ClockDrift` first, because the client only has to wait.
    """
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


def as_meant(buffer: Buffer, gateway: str, config: GatewayConfig, push: Push) -> Push:
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
        (index, _delta_as_meant(config, delta, known.get((delta.table, delta.row_id), {})))
        for index, delta in push.deltas
    ]
    return replace(push, deltas=tuple(deltas), typed=config.strict)


def _delta_as_meant(
    config: GatewayConfig, delta: Delta, known: Mapping[str, CanonicalJson]
) -> Delta:
    schema = config.schemas.get(delta.table)
    types = {column.name: column.type for column in schema.columns} if schema else {}
    columns = tuple(
        [
            (name, _value_as_meant(types.get(name), value, known.get(name)))
            for name, value in delta.columns
        ]
    )
    if columns == delta.columns:
        return delta
    op, table, row_id, client_id, hlc, *_ = delta
    return known_delta(op, table, row_id, client_id, hlc, columns)


def _value_as_meant(
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
