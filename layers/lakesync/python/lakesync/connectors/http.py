"""Requests to an outside system over HTTP, for connectors and action handlers.

Rules of this module
    1. Only the host of the base URL is asked, if the operator lists it, at an address that was
       looked at; redirects are not followed. See `lakesync.connectors.addresses`.
    2. What an answer means is decided here alone: may it be asked again, and when.
    3. No header or body that was sent is part of an error: they hold secrets and values.
Law N9: ``docs/spec/connectors.md``.
"""

from __future__ import annotations

import json
import time
from functools import cache
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import quote, urlencode, urljoin, urlsplit

from lakesync.adapters.hosts import resolved_addresses
from lakesync.connectors.addresses import is_listed, target_of
from lakesync.connectors.http_answers import DEFAULT_WAIT_S, Answer, refused
from lakesync.errors import (
    AdapterFailed,
    AdapterQuotaExceeded,
    AdapterRefused,
    AdapterTimedOut,
    AdapterUnreachable,
    ValidationFailed,
)

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Mapping

    import httpx

    from lakesync.adapters.hosts import Resolve
    from lakesync.connectors.outside import Outside
    from lakesync.errors import LakeSyncError

    Refusal: TypeAlias = Callable[[Answer], LakeSyncError | None]

ANSWER_BYTES_MAX: Final = 16_000_000
"""The largest answer that is read: one page of the largest rows, several times over."""
ANSWER_S_MAX: Final = 12.0
"""The time limit of one answer of a source; a poll's function ends after 29 s."""
CONNECT_S_MAX: Final = 3.0
"""How long connecting to a source may take."""


class Caller:
    """Sends requests to one host, for one poll or action. Not thread-safe.

    Args:
        base: its URL, without a path at the end.
        outside: what the operator allows.
        headers: the headers of each request.
        answer_s_max: how long an answer may take.
        refusal: reads a vendor's own way to say no, before the status is looked at.

    Raises:
        ValidationFailed: the operator does not allow the host.
    """

    def __init__(
        self,
        base: str,
        outside: Outside,
        headers: Mapping[str, str],
        *,
        answer_s_max: float = ANSWER_S_MAX,
        refusal: Refusal = lambda _: None,
        resolve: Resolve = resolved_addresses,
    ) -> None:
        check_host(base, outside)
        self.base = base
        self.headers = dict(headers)
        self._hosts = outside.hosts
        self.answer_s_max = answer_s_max
        self._refusal = refusal
        self._resolve = resolve
        self._client: httpx.Client | None = None
        self._quiet_until = 0.0

    def get(self, path: str, **query: object) -> Any:
        """Return the JSON of a path; raises as `send` does."""
        return self.send("GET", path, query=query).json()

    def post(self, path: str, body: object) -> Any:
        """Post JSON and return the JSON of the answer; raises as `send` does."""
        return self.send("POST", path, body=body).json()

    def send(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, object] | None = None,
        body: object = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Ask once.

        Args:
            method: GET, POST, …
            path: below the base; or a whole URL, which must be of the same host.
            query: parameters; those that are None are left out.
            body: JSON, or bytes as they are.
            headers: more of them.

        Raises:
            AdapterQuotaExceeded: the source limits requests; the error says for how long.
            AdapterUnreachable, AdapterTimedOut, AdapterFailed: it may be asked again.
            NotFound: there is no such thing.
            AdapterRefused: the source says no.
        """
        answer = self.ask(method, path, query=query, body=body, headers=headers)
        error = self._refusal(answer) or refused(answer, urlsplit(self.base).hostname or "")
        if error is not None:
            raise error
        return answer

    def ask(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, object] | None = None,
        body: object = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Send one request, as `send` does, and return the answer whatever its status is."""
        waits_s = self._quiet_until - time.monotonic()
        if waits_s > 0:
            raise AdapterQuotaExceeded(
                f"{urlsplit(self.base).hostname} accepts no more requests for now",
                retry_after_s=int(waits_s) + 1,
            )
        answer = self._answer(method, self._url(path, query), body, headers or {})
        if answer.headers.get("x-ratelimit-remaining") == "0":  # the next would be refused
            self._quiet_until = time.monotonic() + (answer.wait_s() or 0)
        return answer

    def close(self) -> None:
        """Close the connection. Safe to repeat."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _url(self, path: str, query: Mapping[str, object] | None) -> str:
        url = urljoin(f"{self.base}/", path)
        if urlsplit(url)[:2] != urlsplit(self.base)[:2]:
            raise AdapterRefused("the source redirects to another host, which is not allowed")
        given = {name: value for name, value in (query or {}).items() if value is not None}
        return f"{url}?{urlencode(given, quote_via=quote)}" if given else url

    def _answer(self, method: str, url: str, body: object, headers: Mapping[str, str]) -> Answer:
        import httpx  # noqa: PLC0415 - only who asks needs it

        target = target_of(url, self._hosts, self._resolve)
        if self._client is None:
            self._client = httpx.Client(follow_redirects=False, trust_env=False, verify=trusted())
        named = {"accept": "application/json", "user-agent": "lakesync", **self.headers, **headers}
        content = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        if content is not None:
            named.setdefault("content-type", "application/json")
        address = f"[{target.address}]" if ":" in target.address else target.address
        request = self._client.build_request(
            method,
            f"{target.scheme}://{address}:{target.port}{target.path}",
            content=content,
            headers={**named, "host": target.authority},
            extensions={"sni_hostname": target.host},
            timeout=httpx.Timeout(self.answer_s_max, connect=CONNECT_S_MAX),
        )
        try:
            return self._read(self._client.send(request, stream=True))
        except (httpx.ConnectError, httpx.ConnectTimeout) as exc:
            raise AdapterUnreachable(
                f"{target.host} was not reached", retry_after_s=DEFAULT_WAIT_S
            ) from exc
        except httpx.TimeoutException as exc:
            raise AdapterTimedOut(
                f"{target.host} gave no answer in {self.answer_s_max:g} s",
                retry_after_s=DEFAULT_WAIT_S,
            ) from exc
        except httpx.HTTPError as exc:
            raise AdapterFailed(
                f"{target.host} hung up: {type(exc).__name__}", retry_after_s=DEFAULT_WAIT_S
            ) from exc

    def _read(self, response: httpx.Response) -> Answer:
        deadline = time.monotonic() + self.answer_s_max
        parts, size = [], 0
        try:
            for part in response.iter_bytes():
                parts.append(part)
                size += len(part)
                if size > ANSWER_BYTES_MAX:
                    raise AdapterRefused(
                        f"the source's answer is over {ANSWER_BYTES_MAX} bytes: ask for less"
                    )
                if time.monotonic() > deadline:
                    raise AdapterTimedOut("the source's answer did not end")
        finally:
            response.close()
        return Answer(response.status_code, dict(response.headers), b"".join(parts))


@cache
def trusted() -> ssl.SSLContext:
    """Return the certificates that are trusted; reading them takes as long as a request."""
    import httpx  # noqa: PLC0415 - only who asks needs it

    return httpx.create_ssl_context(trust_env=False)


def check_host(url: str, outside: Outside) -> None:
    """Refuse a URL whose host the operator does not list.

    Raises:
        ValidationFailed: it is not listed.
    """
    if not is_listed(url, outside.hosts):
        raise ValidationFailed(
            f"the operator of this stack does not allow requests to {urlsplit(url).hostname}: ask "
            "for it to be listed in ConnectorHosts, of actions in ActionHosts",
            field="configuration",
        )
