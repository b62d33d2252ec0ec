"""The handler of ``functions/notify``: frames are posted to WebSockets of what was committed.

It handles the stream of the buffer's table, and sweeps.

A batch of the buffer's stream is handled gateway by gateway; each has its share of the remaining
time, so that none waits for another's connections. Lambda retries what fails, or had no time, for
some minutes, and then gives up: clients pull what they missed.

Frames are posted to API Gateway, one request each. Requests are signed here, as those of DynamoDB
are: the SDK would spend most of a millisecond on each, and a commit may need a thousand of them.
"""

from __future__ import annotations

import os
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from lakesync.buffer.caller import Credentials, Network, RestSigner
from lakesync.buffer.connections import changes_of
from lakesync.errors import AdapterRefused, GatewayDeleted, LakeSyncError, Retry, Unavailable
from lakesync.ports import Delivered
from lakesync.runtime import observe

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakesync.gateway.broadcast import Broadcaster
    from lakesync.gateway.connected import ConnectionSweep
    from lakesync.runtime.observe import Handler

# --- notifications --------------------------------------------------------------------------------


_MARGIN_MS: Final = 10_000
"""Left of a function's time when no further frame is sent: one without an answer takes 6 s."""


def notify_handler(broadcaster: Broadcaster, sweep: ConnectionSweep) -> Handler:
    """Return the handler of the stream's batches, and of the schedule's ticks."""

    def handler(event: dict[str, Any], context: Any) -> dict[str, object]:
        try:
            if "Records" in event:
                return _notify(broadcaster, event["Records"], context)
            return {"closed": sweep.sweep(_share(context, 1))}
        finally:
            try:
                broadcaster.drain()
            finally:
                observe.publish()

    return handler


def _notify(
    broadcaster: Broadcaster, records: list[dict[str, Any]], context: Any
) -> dict[str, object]:
    changes = changes_of(records)
    owner = str(records[0].get("eventID", ""))
    tasks: list[Callable[[Callable[[], bool]], bool]] = [
        partial(broadcaster.close_revoked, gateway, kind, name)
        for gateway, kind, name in changes.revocations
    ]
    tasks += [
        partial(
            broadcaster.notify,
            gateway,
            changes.commits.get(gateway, 0),
            owner,
            rules_changed=gateway in changes.configs,
        )
        for gateway in sorted(changes.commits.keys() | changes.configs)
    ]
    again: list[LakeSyncError] = []
    is_whole = True
    for number, task in enumerate(tasks):
        is_done, errors = _tried(task, _share(context, len(tasks) - number))
        is_whole, again = is_whole and is_done, again + errors
    if again:
        raise again[0]  # the whole batch comes again; what is done is not done twice
    failures = []
    if not is_whole:
        observe.count("BroadcastsHandedOn")
        failures = [{"itemIdentifier": records[0]["dynamodb"]["SequenceNumber"]}]
    return {"gateways": len(changes.commits), "batchItemFailures": failures}


def _share(context: Any, parts: int) -> Callable[[], bool]:
    """Return a function that tells whether time is left of one of ``parts`` equal shares."""
    left_ms = context.get_remaining_time_in_millis()
    ends_ms = left_ms - max(left_ms - _MARGIN_MS, 0) / parts
    return lambda: context.get_remaining_time_in_millis() > ends_ms


def _tried(
    task: Callable[[Callable[[], bool]], bool], has_time: Callable[[], bool]
) -> tuple[bool, list[LakeSyncError]]:
    """Do something; returns whether it is done, and returns the error if it may succeed later.

    What failed keeps no neighbour.
    """
    try:
        return task(has_time), []
    except GatewayDeleted:
        return True, []  # its connections are closed by its revocation
    except LakeSyncError as error:
        observe.failure(error, task="notify")
        return True, [error] if error.retry is Retry.LATER else []


# --- posting frames -------------------------------------------------------------------------------


_GONE: Final = 410
_BUSY: Final = 429
_SERVER_FAULT: Final = 500


class ApiSockets:
    """`lakesync.ports.Sockets` by API Gateway. Safe to use from several threads.

    Args:
        host: the API's own host name, which distinguishes it from others.
        stage: its stage.
        region: its region.
        endpoint_url: where API Gateway is, if not at the host's own address.
        network: replaces the network.
    """

    def __init__(
        self,
        host: str,
        stage: str,
        region: str,
        endpoint_url: str | None = None,
        *,
        network: Callable[[str, str, dict[str, str], bytes], tuple[int, bytes]] | None = None,
    ) -> None:
        self._signer = RestSigner(host, "execute-api", region)
        self._request = network or Network(endpoint_url or f"https://{host}").request
        self._stage = stage

    def send(self, connection_id: str, frame: str) -> Delivered:
        """Send a text frame."""
        status = self._ask("POST", connection_id, frame.encode())
        if status == _GONE:
            return Delivered.GONE
        return Delivered.BUSY if status == _BUSY else Delivered.SENT

    def close(self, connection_id: str) -> None:
        """Close a connection; one that is closed already stays so."""
        if self._ask("DELETE", connection_id, b"") == _BUSY:
            raise Unavailable("API Gateway is busy; the same request may succeed in a moment")

    def _ask(self, method: str, connection_id: str, body: bytes) -> int:
        path = f"/{self._stage}/@connections/{quote(connection_id, safe='')}"
        credentials = Credentials(
            os.environ["AWS_ACCESS_KEY_ID"],
            os.environ["AWS_SECRET_ACCESS_KEY"],
            os.environ.get("AWS_SESSION_TOKEN"),
        )
        now = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        headers = self._signer.headers(method, path, body, credentials, now)
        status, _ = self._request(method, path, headers, body)
        if status >= _SERVER_FAULT:
            raise Unavailable(f"API Gateway fails (HTTP {status}); try again in a moment")
        if status not in {_GONE, _BUSY} and status >= 300:  # noqa: PLR2004 - not a success
            raise AdapterRefused(f"API Gateway refused {method} of a connection: HTTP {status}")
        return status
