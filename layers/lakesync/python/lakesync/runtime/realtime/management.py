"""API Gateway's other side of a WebSocket: frames are posted to it, one request each.

Requests are signed here, as those of DynamoDB are: the SDK would spend most of a millisecond on
each, and a commit may need a thousand of them.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from lakesync.buffer.network import Network
from lakesync.buffer.signing import Credentials, RestSigner
from lakesync.errors import AdapterRefused, Unavailable
from lakesync.ports import Delivered

if TYPE_CHECKING:
    from collections.abc import Callable

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
