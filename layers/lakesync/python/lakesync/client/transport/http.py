"""The transport to a deployed gateway: protobuf over HTTPS.

::

    transport = HttpTransport("https://….amazonaws.com", "g1", token=fetch_token)

httpx is imported when a transport is created, so that an app that only edits does not need it.
"""

from __future__ import annotations

import gzip
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from lakesync.client.download.read_ahead import ReadAhead
from lakesync.client.forked import keep, note_forks
from lakesync.client.transport.answers import (
    EMPTY,
    connector_types_in,
    error_of,
    foreign,
    plain_body,
    read,
)
from lakesync.client.transport.attachments import CarriesOverHttp
from lakesync.client.transport.connections import Timeouts, connections
from lakesync.client.transport.sockets import OpenSockets
from lakesync.client.transport.token import Token
from lakesync.core.clock import STAMP_MAX
from lakesync.core.schema_json import schemas_from_json
from lakesync.core.values import parse
from lakesync.errors import AuthFailed, NotTheGateway, Unreachable
from lakesync.installing import how_to_install
from lakesync.wire import actions_json, proto

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Self

    import httpx

    from lakesync.core.actions import ActionAnswers, ActionDescription, ActionPush
    from lakesync.core.messages import Pull, PullPage, Push, PushReceipt
    from lakesync.core.schema import Schemas
    from lakesync.ports import ConnectorDescription, Hearer, Listening

PROTOBUF: Final = "application/x-protobuf"
JSON: Final = "application/json"
GZIP_BYTES_MIN: Final = 2_048
"""Bodies below this cost more to compress than to send."""
_GZIP_LEVEL: Final = 5
_UNAUTHORISED: Final = 401


_DEFAULT_TIMEOUTS: Final = Timeouts()


class HttpTransport(CarriesOverHttp):
    """`lakesync.ports.Transport` over HTTPS. Safe to share between threads; close it when done.

    Args:
        base_url: the API's address, up to and without ``/v1``.
        gateway: the gateway's id; the token must be signed for it.
        token: a token, or a function that returns one: called once, and again when the gateway
            refuses the last one. It must then return a fresh one. Its exceptions become an
            ``AUTH_ERROR``.
        socket_url: where WebSockets are opened, ``SocketUrl`` of the stack: changes are then
            reported to a `SyncLoop` at once. Empty: it polls.
        timeouts: how long to wait.
        http: httpx's own transport, such as ``httpx.MockTransport``; for tests and proxies.

    Raises:
        AuthFailed: the token is malformed.
        ImportError: httpx is not installed.
    """

    def __init__(
        self,
        base_url: str,
        gateway: str,
        *,
        token: str | Callable[[], str],
        socket_url: str = "",
        timeouts: Timeouts = _DEFAULT_TIMEOUTS,
        http: httpx.BaseTransport | None = None,
    ) -> None:
        try:
            import httpx  # noqa: PLC0415 - see the module's docstring
        except ModuleNotFoundError as exc:
            raise ImportError(f"HttpTransport needs httpx: run {how_to_install('client')}") from exc
        self._token = Token(token)
        self._is_renewed = False
        """The token was renewed for a refusal that is not the gateway's, which has not answered
        since."""
        self._socket_url = socket_url
        self._httpx = httpx
        root = f"{base_url.rstrip('/')}/v1"
        address = f"{root}/sync/{quote(gateway, safe='')}/"
        self._types = f"{root}/connectors/types"
        self._connections = partial(
            connections,
            httpx,
            address,
            {"Accept": PROTOBUF, "Accept-Encoding": "gzip"},
            http,
            timeouts,
        )
        self._connect()
        note_forks(self)

    def _connect(self) -> None:
        self._http, self._store = self._connections()
        self._sockets = OpenSockets()
        self._ahead = ReadAhead(self._page)

    def forked(self) -> None:
        """Have connections of the child's own: two processes cannot share one."""
        keep(self._http, self._store)
        self._connect()

    def push(self, push: Push) -> PushReceipt:
        """Hand deltas over."""
        self._ahead.wait()
        body = proto.encode_push(push)
        headers = {"Content-Type": PROTOBUF}
        if len(body) >= GZIP_BYTES_MIN:
            # The same body gives the same bytes, whenever it is sent.
            body = gzip.compress(body, _GZIP_LEVEL, mtime=0)
            headers["Content-Encoding"] = "gzip"
        receipt = read(proto.decode_receipt, self._ask("POST", "push", headers, content=body))
        if not receipt.server_time_ms:  # so an empty body is read
            raise NotTheGateway(EMPTY)
        return receipt

    def pull(self, pull: Pull) -> PullPage:
        """Fetch the next page, and begin to fetch the one after it."""
        return self._ahead.pull(pull)

    def _page(self, pull: Pull) -> PullPage:
        query = {
            "since": pull.since,
            "clientId": pull.client_id,
            "limit": pull.deltas_max,
            "epoch": pull.epoch,
            "snapshot": pull.snapshot,
            "source": pull.source,
            "scope": pull.scope,
            "removes": pull.removes or "",
            "ownCursor": pull.own_cursor or "",
            "fresh": pull.at_least == STAMP_MAX or "",
            "quarantined": "" if pull.quarantined is None else str(pull.quarantined),
            "atLeast": str(pull.at_least) if 0 < pull.at_least < STAMP_MAX else "",
        }
        given = {name: value for name, value in query.items() if value != ""}
        page = read(proto.decode_page, self._ask("GET", "pull", {}, params=given))
        if not page.cursor and (pull.since or pull.epoch):  # so an empty body is read
            raise NotTheGateway(EMPTY)
        return page

    def schemas(self) -> Schemas:
        """Fetch the schemas; see `lakesync.ports.TellsSchemas`."""
        self._ahead.wait()
        text = self._ask("GET", "schema", {"Accept": JSON})
        return read(lambda body: schemas_from_json(parse(body)), text)

    def run_actions(self, push: ActionPush) -> ActionAnswers:
        """Have actions run; see `lakesync.ports.RunsActions`."""
        self._ahead.wait()
        headers = {"Accept": JSON, "Content-Type": JSON}
        body = actions_json.encode_push(push)
        answer = self._ask("POST", "action", headers, content=body)
        return read(actions_json.decode_answers, answer)

    def discover_actions(self) -> dict[str, list[ActionDescription]]:
        """Ask which actions the client may run; see `lakesync.ports.RunsActions`."""
        self._ahead.wait()
        answer = self._ask("GET", "actions", {"Accept": JSON})
        return read(actions_json.decode_discovery, answer)

    def connector_types(self) -> list[ConnectorDescription]:
        """Fetch the types of connectors; see `lakesync.ports.TellsConnectorTypes`."""
        self._ahead.wait()
        text = self._ask("GET", self._types, {"Accept": JSON})
        return read(connector_types_in, text)

    def listen(self, hearer: Hearer) -> Listening | None:
        """Open a WebSocket and keep it; None without a ``socket_url``."""
        if not self._socket_url:
            return None
        from lakesync.client.transport.listener import SocketListener  # noqa: PLC0415 - as httpx

        return SocketListener(self._socket_url, hearer, self._token).start()

    def drop_requests(self) -> None:
        """End the requests that are under way; see `lakesync.ports.DropsRequests`."""
        self._sockets.shut()

    def close(self) -> None:
        """Close the connections, whatever is under way; safe to repeat."""
        self.drop_requests()
        self._ahead.wait()
        self._http.close()
        self._store.close()

    def _ask(self, method: str, path: str, headers: Mapping[str, str], **request: Any) -> bytes:
        try:
            answer = self._answer(method, path, headers, **request)
        except (AuthFailed, NotTheGateway) as error:
            if error.field == "token":
                raise  # there is none to send
            if isinstance(error, NotTheGateway):
                if error.http_status != _UNAUTHORISED or self._is_renewed:
                    raise
                self._is_renewed = True
            self._token.forget()  # it may have run out; a second refusal is an answer
            answer = self._answer(method, path, headers, **request)
        self._is_renewed = False
        return answer

    def _answer(self, method: str, path: str, headers: Mapping[str, str], **request: Any) -> bytes:
        authorised = {**headers, "Authorization": f"Bearer {self._token.give()}"}
        traced = {"trace": self._sockets.note}
        try:
            # A redirect is not followed: its target must not see the token.
            with self._http.stream(
                method, path, headers=authorised, extensions=traced, **request
            ) as response:
                if response.is_stream_consumed:
                    body = response.content  # a mock's, read when it was made
                else:
                    body = plain_body(response.iter_raw(), response.headers)
        except self._httpx.TransportError as exc:
            reason = str(exc) or type(exc).__name__
            raise Unreachable(f"the gateway cannot be reached: {reason}; try again") from exc
        if not response.is_success:
            raise error_of(response.status_code, response.headers, body)
        wanted = headers.get("Accept", PROTOBUF)
        if not response.headers.get("content-type", "").startswith(wanted):
            raise foreign(response.status_code, response.headers, body)
        return body

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
