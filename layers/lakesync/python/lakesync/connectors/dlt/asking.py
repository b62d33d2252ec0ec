"""dlt's requests, sent by `lakesync.connectors.http.Caller`, which allows or refuses them.

Law N9: ``docs/spec/connectors.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from requests import PreparedRequest, Response, Session
from requests.adapters import BaseAdapter

from lakesync.connectors.http import Caller
from lakesync.connectors.http_answers import refused

if TYPE_CHECKING:
    from lakesync.connectors.outside import Outside

_LEADS_ELSEWHERE = range(300, 400)
_NOT_SENT = frozenset({"host", "content-length", "connection", "user-agent"})
"""Headers that the caller decides."""


class _Adapter(BaseAdapter):
    """Sends requests to one origin."""

    def __init__(self, caller: Caller) -> None:
        super().__init__()
        self._caller = caller

    def send(self, request: PreparedRequest, *_: Any, **__: Any) -> Response:
        """Send a request; returns the answer whatever its status, unless it is a redirect."""
        headers = {
            name: value if isinstance(value, str) else value.decode()
            for name, value in request.headers.items()
            if name.lower() not in _NOT_SENT
        }
        body = request.body.encode() if isinstance(request.body, str) else request.body
        answer = self._caller.ask(
            request.method or "GET", request.url or "", body=body, headers=headers
        )
        if answer.status in _LEADS_ELSEWHERE:
            error = refused(answer, urlsplit(self._caller.base).hostname or "")
            if error is not None:
                raise error
        response = Response()
        response.status_code = answer.status
        response.headers.update(answer.headers)
        response.url = request.url or ""
        response.request = request
        response.encoding = "utf-8"
        response._content = answer.body  # noqa: SLF001 - as adapters fill it
        return response

    def close(self) -> None:
        """Close the connection."""
        self._caller.close()


class _Session(Session):
    """A session that is not copied: dlt copies its configuration."""

    def __deepcopy__(self, _: object) -> _Session:
        return self


def session_for(url: str, outside: Outside) -> Session:
    """Return a caller that sends requests only to the origin of a URL.

    Raises:
        ValidationFailed: the operator does not allow it.
    """
    parts = urlsplit(url)
    adapter = _Adapter(Caller(f"{parts.scheme}://{parts.netloc}", outside, {}))
    session = _Session()
    session.trust_env = False
    session.adapters.clear()
    for scheme in ("https://", "http://"):
        session.mount(scheme, adapter)
    return session
