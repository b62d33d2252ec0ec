"""Requests to an outside system over HTTP, for connectors and action handlers.

The hosts that may be reached are those that the operator lists, no internal ones. Webhooks of
actions and connectors that ask over HTTP go through here.

Rules of addresses
    1. An entry is ``*`` (any host), a host, ``*.`` and a domain, or an origin with its scheme. All
       but origins are reached by https, and only at public addresses.
    2. A host is resolved once, all its addresses are looked at, and what was looked at is what is
       connected to: a name that is given another address meanwhile changes nothing.
    3. Redirects are not followed, and no proxy is asked.

Rules of requests
    1. Only the host of the base URL is asked, if the operator lists it, at an address that was
       looked at; redirects are not followed.
    2. What an answer means is decided here alone: may it be asked again, and when.
    3. No header or body that was sent is part of an error: they hold secrets and values.

Laws N4, N9: ``docs/spec/connectors.md``.
"""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias
from urllib.parse import quote, urlencode, urljoin, urlsplit

from lakesync.adapters.network import is_public, resolved_addresses
from lakesync.connectors.port import Unreadable
from lakesync.errors import (
    AdapterFailed,
    AdapterQuotaExceeded,
    AdapterRefused,
    AdapterTimedOut,
    AdapterUnreachable,
    NotFound,
    ValidationFailed,
)

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import httpx

    from lakesync.adapters.network import Resolve
    from lakesync.connectors.port import Change, Outside
    from lakesync.errors import LakeSyncError

    Refusal: TypeAlias = Callable[["Answer"], LakeSyncError | None]

# --- addresses ------------------------------------------------------------------------------------


ANY: Final = "*"
_PORTS: Final = {"https": 443, "http": 80}


class Target(NamedTuple):
    """Where to connect to."""

    scheme: str
    host: str
    port: int
    address: str
    """An IP address of the host."""
    path: str
    """With the query."""

    @property
    def authority(self) -> str:
        """What the header ``Host`` says."""
        named = f"[{self.host}]" if ":" in self.host else self.host
        return named if self.port == _PORTS[self.scheme] else f"{named}:{self.port}"


def target_of(url: str, allowed: Sequence[str], resolve: Resolve = resolved_addresses) -> Target:
    """Return where a URL leads to, if it may be reached.

    Raises:
        AdapterRefused: it may not.
        AdapterUnreachable: its host cannot be resolved.
    """
    try:
        parts = urlsplit(url)
        given = parts.port
    except ValueError as exc:
        raise AdapterRefused(f"this is no URL of a host that can be reached: {exc}") from exc
    host, scheme = (parts.hostname or "").rstrip("."), parts.scheme
    port = given or _PORTS.get(scheme, 0)
    is_origin = f"{scheme}://{parts.netloc}" in allowed
    if not is_listed(url, allowed):
        raise AdapterRefused(
            f"the operator of this stack does not allow requests to {scheme}://{host}; ask for it"
        )
    addresses = resolve(host, port)
    if not is_origin and not all(map(is_public, addresses)):
        raise AdapterRefused(
            f"{host} has a private address; requests may go to public addresses only"
        )
    if not addresses:
        raise AdapterUnreachable(f"{host} has no address")
    path = parts.path or "/"
    return Target(
        scheme, host, port, addresses[0], f"{path}?{parts.query}" if parts.query else path
    )


def is_listed(url: str, allowed: Sequence[str]) -> bool:
    """Return whether the operator allows a URL's host, or its origin."""
    try:
        parts = urlsplit(url)
        host, port = (parts.hostname or "").rstrip("."), parts.port
    except ValueError:
        return False
    if port == 0:
        return False
    if f"{parts.scheme}://{parts.netloc}" in allowed:
        return True
    named = any(
        entry in {ANY, host} or (entry.startswith("*.") and host.endswith(entry[1:]))
        for entry in allowed
    )
    return parts.scheme == "https" and bool(host) and named and "@" not in parts.netloc


# --- answers --------------------------------------------------------------------------------------


REASON_CHARS_MAX: Final = 300
"""What of a source's reason is repeated."""
DEFAULT_WAIT_S: Final = 15
"""The waiting time after a failure of a source that states none."""
CREDENTIALS: Final = "credentials"
"""The field of an error that somebody must mend by other credentials."""
NOT_AS_DESCRIBED: Final = (
    KeyError, TypeError, ValueError, AttributeError, IndexError, ArithmeticError,
)  # fmt: skip
"""Exceptions of reading an answer that does not follow the source's API."""
_OK: Final = range(200, 300)
_TOO_MANY: Final = 429


class Answer(NamedTuple):
    """An answer."""

    status: int
    headers: Mapping[str, str]
    """By names in lower case."""
    body: bytes

    def json(self) -> Any:
        """Return its JSON value; None if it has no body.

        Raises:
            AdapterFailed: it is not JSON, or cut off; the request may be repeated.
        """
        try:
            return json.loads(self.body) if self.body else None
        except (ValueError, RecursionError) as exc:
            raise AdapterFailed(
                "the source's answer was cut off or is not JSON", retry_after_s=DEFAULT_WAIT_S
            ) from exc

    def date(self) -> datetime | None:
        """Return when it was sent by the source's clock; None if it does not say."""
        try:
            return parsedate_to_datetime(self.headers.get("date", "")).astimezone(UTC)
        except ValueError:
            return None

    def wait_s(self) -> int | None:
        """Get for how long the source asks to be left alone, by its headers; None if it does not.

        Reads ``Retry-After`` as seconds or as a date, and ``X-RateLimit-Reset`` as a date.
        """
        for name in ("retry-after", "x-ratelimit-reset"):
            text = self.headers.get(name, "")
            if text.isdecimal() and name == "retry-after":
                return int(text)
            until = _moment(text)
            if until is not None:
                return max(int((until - (self.date() or datetime.now(UTC))).total_seconds()), 1)
        return None


def reason_in(answer: Answer) -> str:
    """Return the reason for a refusal from an answer, as a short line of text."""
    text = answer.body.decode("utf-8", "replace")
    return " ".join(text.split())[:REASON_CHARS_MAX]


def refused(answer: Answer, host: str) -> LakeSyncError | None:
    """Return what an answer means by its status; None if it is one to go on with."""
    status = answer.status
    if status in _OK:
        return None
    wait_s = answer.wait_s()
    if status == _TOO_MANY:
        return AdapterQuotaExceeded(
            f"{host} accepts no more requests for now", retry_after_s=wait_s or 60
        )
    if status >= 500 or status == 408:  # noqa: PLR2004 - as HTTP has them
        return AdapterFailed(f"{host} failed with {status}", retry_after_s=wait_s or DEFAULT_WAIT_S)
    if status == 401:  # noqa: PLR2004
        return AdapterRefused(
            f"{host} refuses the credentials: they are wrong or expired", field=CREDENTIALS
        )
    if status in {404, 410}:
        return NotFound(f"{host} answered {status}: {reason_in(answer)}")
    if status < 400:  # noqa: PLR2004
        return AdapterRefused(f"{host} answered {status}: the redirect is not followed")
    return AdapterRefused(f"{host} refused it with {status}: {reason_in(answer)}")


def _moment(text: str) -> datetime | None:
    for read in (datetime.fromisoformat, parsedate_to_datetime):
        try:
            moment = read(text)
        except ValueError:
            continue
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return None


# --- requests -------------------------------------------------------------------------------------


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
            path: below the base; or a whole URL, which must be of the same host.
            query: parameters; those that are None are left out.
            body: JSON, or bytes as they are.

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


# --- records --------------------------------------------------------------------------------------


def changes_in(
    records: Iterable[Mapping[str, Any]],
    id_field: str,
    change_of: Callable[[str, Mapping[str, Any]], Change],
) -> tuple[list[Change], list[Unreadable]]:
    """Return records as changes, and those that violate the source's API.

    Args:
        id_field: the field with the id; a record without it makes the whole answer unreadable.
        change_of: makes the change from a row id and its record, or fails.
    """
    changes: list[Change] = []
    unreadable: list[Unreadable] = []
    for record in records:
        row_id = str(record[id_field])
        try:
            changes.append(change_of(row_id, record))
        except NOT_AS_DESCRIBED as exc:
            unreadable.append(Unreadable(row_id, _why(exc)))
    return changes, unreadable


def _why(error: Exception) -> str:
    return f"it has no {error.args[0]}" if isinstance(error, KeyError) else str(error)
