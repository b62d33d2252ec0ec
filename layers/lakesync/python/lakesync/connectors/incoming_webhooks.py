"""Incoming webhooks: a source announces a change, and its deltas are stored at once.

Rules of this module
    1. Without a valid signature nothing is read or written, and the answer says only that the
       signature is wrong.
    2. A delivery is processed once: it is noted after the gateway accepts its deltas. After a crash
       between, the source sends it again, and it gives the same deltas.
    3. It takes no lease and moves no cursor: the next poll reads the same changes, as duplicates.
       So a lost delivery is only late.
Law N14: ``docs/spec/connectors.md``.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from lakesync.connectors.missing_rows import brought_by
from lakesync.connectors.pages import client_id_of, deltas_of, pushes_of, refused_in
from lakesync.connectors.port import (
    NOTHING_ALLOWED,
    SIGNATURE_REFUSED,
    Delivery,
    Storage,
    TakesWebhooks,
    digest,
)
from lakesync.connectors.registry import (
    check_name,
    connector_type,
    definition_from,
    made_with,
    secret_name,
)
from lakesync.connectors.state import Deletions, state_from
from lakesync.core.messages import Push
from lakesync.errors import (
    AuthFailed,
    Conflict,
    InternalError,
    LakeSyncError,
    NotFound,
    RateLimited,
    ValidationFailed,
)
from lakesync.ports import ActionKey, ActionRun, RunState
from lakesync.result import Err

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lakesync.connectors.port import ConnectorType, Outside, Signed, SourcePage
    from lakesync.core.messages import PushReceipt
    from lakesync.ports import (
        ActionRuns,
        ConnectorStore,
        ObjectStore,
        Rows,
        SecretStore,
        StoredConnector,
        WallClock,
    )

WEBHOOK_BODY_BYTES_MAX: Final = 2_097_152
"""The largest accepted webhook: several times the largest row."""
WEBHOOKS_PER_MINUTE_MAX: Final = 600
"""Webhooks of one connector within a minute: a busier source should be polled."""
AHEAD_S_MAX: Final = 300
"""How far the clock of a webhook's sender may be ahead."""
_MINUTE_S: Final = 60


class Taken(NamedTuple):
    """The result of a webhook."""

    rows: int
    """The number of its rows, deletions included."""
    is_repeated: bool = False
    """Whether it was processed before, so that nothing was done."""


class Webhooks:
    """Takes the webhooks of registered connectors."""

    def __init__(
        self,
        store: ConnectorStore,
        secrets: SecretStore,
        objects: ObjectStore,
        push: Callable[[str, Push], PushReceipt],
        rows: Rows,
        deliveries: ActionRuns,
        *,
        wall_clock: WallClock,
        outside: Outside = NOTHING_ALLOWED,
    ) -> None:
        self._store = store
        self._secrets = secrets
        self._objects = objects
        self._push = push
        self._rows = rows
        self._deliveries = deliveries
        self._wall_clock = wall_clock
        self._outside = outside

    def take(self, gateway: str, name: str, headers: Mapping[str, str], body: bytes) -> Taken:
        """Process a webhook: when this returns, its changes are durable. Safe to repeat.

        Raises:
            AuthFailed: no connector here accepts webhooks with that signature, or it is too old.
            Conflict: the connector is paused.
            RateLimited, Backpressure: it may be sent again after a pause.
            ValidationFailed: it cannot be read, or a row was refused; other rows were accepted.
        """
        stored = self._store.connector(gateway, check_name(name))
        if stored is None:
            raise AuthFailed(SIGNATURE_REFUSED)
        definition = definition_from(stored.definition)
        kind = _kind(definition.type)
        hidden = self._secrets.get(secret_name(gateway, name))
        now_ms = self._wall_clock()
        signed = _verified(kind, hidden, headers, body, now_ms)
        if definition.paused:
            raise Conflict(f"{name} is paused: what changed meanwhile is polled once it is resumed")
        client_id = client_id_of(name)
        key = ActionKey(gateway, client_id, digest("webhook", signed.delivery), "")
        if self._deliveries.get(key) is not None:
            return Taken(0, is_repeated=True)
        if not self._deliveries.count(gateway, client_id, now_ms, WEBHOOKS_PER_MINUTE_MAX):
            raise RateLimited(
                f"{name} takes {WEBHOOKS_PER_MINUTE_MAX} webhooks a minute",
                retry_after_s=_MINUTE_S,
            )
        rows = self._brought(gateway, stored, hidden, Delivery(signed.sent_ms, body))
        note = ActionRun(key.action_id, "", RunState.ENDED, "webhook")
        self._deliveries.begin(key, None, note, now_ms)
        return Taken(rows)

    def _brought(
        self,
        gateway: str,
        stored: StoredConnector,
        hidden: Mapping[str, str],
        delivery: Delivery,
    ) -> int:
        """Push the changes of a delivery; return the number of rows."""
        name, definition = stored.name, definition_from(stored.definition)
        client_id = client_id_of(name)
        brought = brought_by(client_id, gateway, self._rows)
        storage = Storage(self._objects, gateway, name, brought)
        made, tables = made_with(hidden, storage, self._outside, definition)
        with closing(made) as connector:
            if not isinstance(connector, TakesWebhooks):
                raise AuthFailed(SIGNATURE_REFUSED)
            page = _dated(_page(connector, delivery), tables, delivery.sent_ms)
        page = Deletions(storage, may_note=False).dated(
            state_from(stored.state), "", page, delivery.sent_ms
        )
        deltas, unmade = deltas_of(page, "", tables, client_id, self._wall_clock())
        refused = [(each.table, each.row_id, each.error) for each in unmade]
        for part in pushes_of(deltas):
            receipt = self._push(gateway, Push(client_id, tuple(enumerate(part)), trusted=True))
            for index, error in refused_in(receipt, part, self._wall_clock()).items():
                refused.append((part[index].table, part[index].row_id, error))
        if refused:
            _refuse(refused, len(deltas) + len(unmade))
        return len(deltas)


def _kind(name: str) -> ConnectorType:
    try:
        return connector_type(name)
    except NotFound as exc:  # its package is no longer installed
        raise AuthFailed(SIGNATURE_REFUSED) from exc


def _verified(
    kind: ConnectorType,
    hidden: Mapping[str, str],
    headers: Mapping[str, str],
    body: bytes,
    now_ms: int,
) -> Signed:
    webhook = kind.webhook
    secret = hidden.get(webhook.secret, "") if webhook else ""
    if webhook is None or not secret:
        raise AuthFailed(SIGNATURE_REFUSED)
    signed = webhook.verify(secret, headers, body)
    age_s = (now_ms - signed.sent_ms) / 1000
    if not -AHEAD_S_MAX <= age_s <= webhook.age_s_max:
        raise AuthFailed(
            f"the webhook was signed {abs(age_s):.0f} s {'ago' if age_s > 0 else 'ahead'}: at most "
            f"{webhook.age_s_max} s ago and {AHEAD_S_MAX} s ahead are taken; check the clock"
        )
    return signed


def _page(connector: TakesWebhooks, delivery: Delivery) -> SourcePage:
    try:
        page = connector.on_webhook(delivery)
    except Exception as exc:
        # A connector may be third-party code.
        raise InternalError(f"the connector failed: {type(exc).__name__}: {exc}") from exc
    if isinstance(page, Err):
        raise page.error
    return page.value


def _dated(page: SourcePage, tables: Mapping[str, str], sent_ms: int) -> SourcePage:
    """Return a page without unconfigured tables; changes without a time get the sending time.

    So a repeated delivery gives the same page.
    """
    return replace(
        page,
        changes=tuple(
            each._replace(changed_us=1000 * sent_ms) if each.changed_us is None else each
            for each in page.changes
            if each.table in tables
        ),
        unreadable=tuple(each for each in page.unreadable if each.table in tables),
    )


def _refuse(refused: list[tuple[str, str, LakeSyncError]], rows: int) -> None:
    """Return the error for rows that were refused permanently."""
    table, row_id, error = refused[0]
    raise ValidationFailed(
        f"{len(refused)} of {rows} rows were refused, the first {row_id[:100]} of {table}: "
        f"{error.message}; a poll keeps them as dead letters"
    )
