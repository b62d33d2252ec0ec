"""Attachments over HTTP: the gateway is asked for signed requests, which the store answers."""

from __future__ import annotations

import contextlib
import json
import re
from typing import TYPE_CHECKING, Any, Final

from lakesync.client.transport.quiet import signed_request
from lakesync.errors import (
    AdapterFailed,
    DamagedOnTheWay,
    NotTheGateway,
    RateLimited,
    Unavailable,
    Unreachable,
)
from lakesync.ports import SignedRequest, UploadState

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from types import ModuleType

    import httpx

    from lakesync.client.transport.sockets import OpenSockets
    from lakesync.core.attachments import Attachment
    from lakesync.errors import LakeSyncError

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
