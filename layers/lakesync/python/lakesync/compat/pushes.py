"""Pushes of followers: their receipts, their refusals, and the rows that these leave different.

A follower drops its edits at 200, and repeats them up to ten times at any other status. So if one
delta is refused, the whole answer is a refusal; the other deltas are accepted, and are duplicates
when they are repeated. Rows for which the follower then has other values than the gateway are sent
as they are.
Laws F1 and F6: ``docs/spec/followers.md``.
"""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from lakesync.compat.follower_state import Follower, Resend, pack, unpack
from lakesync.compat.legacy_format import LegacyFormat
from lakesync.compat.legacy_values import as_meant
from lakesync.compat.policy import is_follower, viewer_of
from lakesync.compat.progress import SKIPPED_DELIVERIES, receipt_cursor, resending
from lakesync.core.clock import stamp_ms
from lakesync.core.messages import OutcomeKind
from lakesync.core.names import first_spellings, folded
from lakesync.errors import ClockDrift, Contention, NameTaken

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lakesync.core.config import GatewayConfig
    from lakesync.core.messages import DeltaOutcome, Push, PushReceipt
    from lakesync.gateway.push import PushService
    from lakesync.ports import Buffer

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
