"""The transport to a deployed gateway: protobuf over HTTPS.

::

    transport = HttpTransport("https://….amazonaws.com", "g1", token=fetch_token)

httpx is imported when a transport is created, so that an app that only edits does not need it.

It reads ahead: a page determines its reader's next request, if the reader does nothing but apply
it. So that page is requested at once, on another thread, while the last one is applied, and is
returned if it is indeed requested. An unused answer is discarded, and so is one that has waited too
long: rules and tokens change.

For attachments the gateway is asked for signed requests, which the store answers.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import re
import threading
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from lakesync.client.gateway_http import (
    EMPTY,
    OpenSockets,
    Timeouts,
    Token,
    connections,
    connector_types_in,
    error_of,
    foreign,
    plain_body,
    read,
    signed_request,
)
from lakesync.client.storage.misuse import keep, note_forks
from lakesync.core.clock import STAMP_MAX
from lakesync.core.delta import parse
from lakesync.core.schema import schemas_from_json
from lakesync.errors import (
    AdapterFailed,
    AuthFailed,
    DamagedOnTheWay,
    NotTheGateway,
    RateLimited,
    Unavailable,
    Unreachable,
)
from lakesync.installing import how_to_install
from lakesync.ports import SignedRequest, UploadState
from lakesync.wire import jsonish, proto

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import ModuleType
    from typing import Self

    import httpx

    from lakesync.core.attachments import Attachment
    from lakesync.core.messages import (
        ActionAnswers,
        ActionDescription,
        ActionPush,
        Pull,
        PullPage,
        Push,
        PushReceipt,
    )
    from lakesync.core.schema import Schemas
    from lakesync.errors import LakeSyncError
    from lakesync.ports import ConnectorDescription, Hearer, Listening

# --- reading ahead --------------------------------------------------------------------------------


AGE_S_MAX: Final = 10
"""How long a page that was fetched ahead may wait to be asked for."""


class _Fetch(threading.Thread):
    def __init__(self, fetch: Callable[[Pull], PullPage], pull: Pull) -> None:
        # A program that ends does not wait for it.
        super().__init__(daemon=True, name="lakesync-read-ahead")
        self.pull = pull
        self._fetch = fetch
        self._page: PullPage | None = None
        self._error: Exception | None = None
        self._answered_s = 0.0

    def run(self) -> None:
        try:
            self._page = self._fetch(self.pull)
        except Exception as error:  # noqa: BLE001 - raised by `page`, where somebody hears it
            self._error = error
        self._answered_s = time.monotonic()

    def page(self, pull: Pull) -> PullPage | None:
        """Wait for the page; None if it does not fit the request, or is too old."""
        self.join()
        if self.pull != pull or time.monotonic() - self._answered_s > AGE_S_MAX:
            return None
        if self._error is not None:
            raise self._error
        return self._page


class ReadAhead:
    """Fetches each next page before it is requested: for one reader, one page at a time."""

    def __init__(self, fetch: Callable[[Pull], PullPage]) -> None:
        self._fetch = fetch
        self._ahead: _Fetch | None = None

    def pull(self, pull: Pull) -> PullPage:
        ahead, self._ahead = self._ahead, None
        page = ahead.page(pull) if ahead else None
        if page is None:
            page = self._fetch(pull)
        if page.has_more:
            self._ahead = _Fetch(self._fetch, following(pull, page))
            self._ahead.start()
        return page

    def wait(self) -> None:
        """Wait until no request is in progress; fetched pages are discarded."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.join()


def following(pull: Pull, page: PullPage) -> Pull:
    """Return the next request of a reader that has applied the answer to its last one."""
    since = pull.since if page.snapshot else page.cursor
    return replace(pull, since=since, epoch=page.epoch, snapshot=page.snapshot, scope=page.scope)


# --- attachments ----------------------------------------------------------------------------------


_JSON: Final = "application/json"
_HEADERS: Final = {"Accept": _JSON, "Content-Type": _JSON}
_OK, _WHOLE, _PARTIAL, _ENDED, _THERE = 200, 200, 206, 416, 412
_CODE: Final = re.compile(rb"<Code>([A-Za-z0-9]{1,64})</Code>")
_ETAG: Final = "etag"
"""What each successful answer of the store has, and a page of somebody else's has not."""
_EXPIRED: Final = 403
_GONE: Final = 404
_BUSY: Final = frozenset({429, 503})
_BAD_BYTES: Final = frozenset({"BadDigest", "InvalidDigest", "IncompleteBody"})


class CarriesOverHttp:
    """`lakesync.ports.CarriesAttachments` of `HttpTransport`."""

    _httpx: ModuleType
    _store: httpx.Client
    _sockets: OpenSockets

    if TYPE_CHECKING:  # `HttpTransport` has it

        def _ask(
            self, method: str, path: str, headers: Mapping[str, str], **request: Any
        ) -> bytes: ...

    def ask_upload(
        self, reference: Attachment, parts: Sequence[str], upload: str, epoch: str = ""
    ) -> UploadState:
        """Ask how far an upload is, and for what is to be sent next."""
        asked: dict[str, Any] = {"reference": str(reference), "parts": list(parts)}
        if upload:
            asked["upload"] = upload
        if epoch:
            asked["epoch"] = epoch
        answer = self._answered("attachments", asked)
        with _understood():
            return UploadState(
                answer["stored"] is True,
                str(answer.get("upload", "")),
                tuple(_signed(each) for each in answer["requests"]),
                int(answer["partsStored"]),
            )

    def ask_download(
        self, table: str, row_id: str, column: str, reference: Attachment
    ) -> SignedRequest:
        """Ask for what reads an attachment that a cell refers to."""
        place = {"table": table, "rowId": row_id, "column": column}
        answer = self._answered("attachments/download", place | {"reference": str(reference)})
        with _understood():
            return _signed(answer)

    def _answered(self, path: str, asked: Mapping[str, Any]) -> Any:
        body = json.dumps(asked, ensure_ascii=False).encode()
        answer = self._ask("POST", path, _HEADERS, content=body)
        with _understood():
            return json.loads(answer)

    def send_bytes(self, request: SignedRequest, content: bytes) -> None:
        """Make a signed request that stores bytes; bytes that are there already are no error."""
        with self._reached(), signed_request():
            answer = self._store.put(
                request.url,
                headers=dict(request.headers),
                content=content,
                extensions={"trace": self._sockets.note},
            )
        if answer.status_code == _OK and _ETAG in answer.headers:
            return
        if answer.status_code != _THERE or not _CODE.search(answer.content):
            raise _refusal(answer.status_code, answer.content)

    def receive_bytes(self, request: SignedRequest, start: int) -> Iterator[bytes]:
        """Make a signed request that reads bytes from a place on, piece by piece."""
        # A range of a compressed file is no part of the file.
        headers = {"Accept-Encoding": "identity"} | dict(request.headers)
        if start:
            headers["Range"] = f"bytes={start}-"
        with self._reached(), contextlib.ExitStack() as answered:
            with signed_request():
                traced = {"trace": self._sockets.note}
                stream = self._store.stream("GET", request.url, headers=headers, extensions=traced)
                answer = answered.enter_context(stream)
            if answer.status_code == _ENDED:
                return
            if answer.status_code not in {_WHOLE, _PARTIAL} or _ETAG not in answer.headers:
                raise _refusal(answer.status_code, answer.read())
            # A server that knows no ranges begins anew.
            skipped = start if answer.status_code == _WHOLE else 0
            # As it arrives: bytes that wait for a full piece would be lost if the connection
            # breaks.
            for piece in answer.iter_bytes():
                if skipped < len(piece):
                    yield piece[skipped:]
                skipped = max(0, skipped - len(piece))

    @contextlib.contextmanager
    def _reached(self) -> Iterator[None]:
        try:
            yield
        except (self._httpx.TransportError, self._httpx.DecodingError) as exc:
            reason = str(exc) or type(exc).__name__
            raise Unreachable(f"the store cannot be reached: {reason}; try again") from exc


@contextlib.contextmanager
def _understood() -> Iterator[None]:
    try:
        yield
    except (ValueError, TypeError, KeyError) as exc:
        raise NotTheGateway(
            "the answer about an attachment is malformed, as if it were not a LakeSync gateway's"
        ) from exc


def _signed(answer: Any) -> SignedRequest:
    headers = {str(name): str(value) for name, value in dict(answer["headers"]).items()}
    return SignedRequest(str(answer["url"]), headers, int(answer.get("part", 1)))


def _refusal(status: int, body: bytes) -> LakeSyncError:
    """Return the meaning of a store's refusal, without its text, which may contain the address."""
    match = _CODE.search(body)
    code = match[1].decode() if match else ""
    if not code and status not in _BUSY:
        error = AdapterFailed(
            f"the answer (HTTP {status}) is not that of the store: this network may want a login, "
            "or a proxy refuses the request"
        )
        error.is_foreign = True
        return error
    if code in _BAD_BYTES:
        return DamagedOnTheWay(
            f"the bytes received are not those that were signed ({code}); try again"
        )
    if status == _EXPIRED:
        return Unavailable(f"the address has expired ({code}); ask for another")
    if status == _GONE:
        return Unavailable("the upload has ended or the attachment is gone; ask again")
    if status in _BUSY:
        return RateLimited(f"the store is busy ({code or status}); try again later")
    return AdapterFailed(f"the store refused with HTTP {status} {code}".rstrip())


# --- the transport --------------------------------------------------------------------------------


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
        body = jsonish.encode_action_push(push)
        answer = self._ask("POST", "action", headers, content=body)
        return read(jsonish.decode_answers, answer)

    def discover_actions(self) -> dict[str, list[ActionDescription]]:
        """Ask which actions the client may run; see `lakesync.ports.RunsActions`."""
        self._ahead.wait()
        answer = self._ask("GET", "actions", {"Accept": JSON})
        return read(jsonish.decode_discovery, answer)

    def connector_types(self) -> list[ConnectorDescription]:
        """Fetch the types of connectors; see `lakesync.ports.TellsConnectorTypes`."""
        self._ahead.wait()
        text = self._ask("GET", self._types, {"Accept": JSON})
        return read(connector_types_in, text)

    def listen(self, hearer: Hearer) -> Listening | None:
        """Open a WebSocket and keep it; None without a ``socket_url``."""
        if not self._socket_url:
            return None
        from lakesync.client.websocket_listener import SocketListener  # noqa: PLC0415 - as httpx

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
