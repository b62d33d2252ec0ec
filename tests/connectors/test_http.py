"""Asking an outside system over HTTP: where none may go, and what answers mean."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import pytest

from lakesync.connectors import Outside, http
from lakesync.connectors.http import Caller, target_of
from lakesync.errors import (
    AdapterFailed,
    AdapterQuotaExceeded,
    AdapterRefused,
    AdapterTimedOut,
    AdapterUnreachable,
    LakeSyncError,
    NotFound,
    Retry,
    ValidationFailed,
)
from tests.support.vendors.server import Asked, Reply, VendorServer

if TYPE_CHECKING:
    from collections.abc import Iterator

SECRET = "hush-hush"


class Echo(VendorServer):
    """Answers what it was asked."""

    def answer(self, asked: Asked) -> Reply:
        return Reply(body={"path": asked.path, "query": dict(asked.query)})


@pytest.fixture
def server() -> Iterator[Echo]:
    with Echo() as running:
        yield running


class Make(Protocol):
    """Makes a caller of a server."""

    def __call__(self, server: VendorServer, answer_s_max: float = 5.0) -> Caller: ...


@pytest.fixture
def caller() -> Iterator[Make]:
    made: list[Caller] = []

    def make(server: VendorServer, answer_s_max: float = 5.0) -> Caller:
        headers = {"authorization": SECRET}
        made.append(Caller(server.url, server.outside, headers, answer_s_max=answer_s_max))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.mark.law("N9")
def test_host_not_listed_by_the_operator_is_refused_at_construction(server: Echo) -> None:
    with pytest.raises(ValidationFailed, match="ConnectorHosts"):
        Caller(server.url, Outside(("*",)), {})
    with pytest.raises(ValidationFailed, match="ConnectorHosts"):
        Caller("https://jira.example.com", Outside(("*.atlassian.net",)), {})


@pytest.mark.law("N9")
@pytest.mark.parametrize(
    "within",
    [
        "169.254.169.254", "127.0.0.1", "10.0.0.1", "fd00:ec2::254", "fec0::1", "::ffff:10.0.0.1",
    ],
)  # fmt: skip
def test_host_name_that_resolves_to_a_private_address_is_refused(within: str) -> None:
    asking = Caller("https://acme.atlassian.net", Outside(("*",)), {}, resolve=lambda *_: [within])
    with pytest.raises(AdapterRefused, match="private address"):
        asking.get("/rest")


@pytest.mark.law("N9")
@pytest.mark.parametrize("port", ["99999", "0", "x", "-1"])
def test_invalid_port_is_refused_at_construction(port: str) -> None:
    with pytest.raises(ValidationFailed, match="ConnectorHosts"):
        Caller(f"https://acme.atlassian.net:{port}", Outside(("*",)), {})
    with pytest.raises(AdapterRefused):
        target_of(f"https://acme.atlassian.net:{port}", ("*",), lambda *_: ["1.1.1.1"])


@pytest.mark.law("N9")
def test_redirects_and_links_to_another_host_are_refused(server: Echo, caller: Make) -> None:
    asking = caller(server)
    server.faults.append(Reply(302, None, {"location": "http://169.254.169.254/latest"}))
    with pytest.raises(AdapterRefused, match="not followed"):
        asking.get("/a")
    for link in ("http://169.254.169.254/latest", "//169.254.169.254/latest", "https://127.0.0.1/"):
        with pytest.raises(AdapterRefused, match="another host"):
            asking.get(link)

    assert [asked.path for asked in server.asked] == ["/a"]
    assert asking.get(f"{server.url}/b")["path"] == "/b"


@pytest.mark.law("N6", "N9")
@pytest.mark.parametrize(
    ("reply", "kind", "wait_s"),
    [
        (Reply(429, None, {"retry-after": "7"}), AdapterQuotaExceeded, 7),
        (Reply(429), AdapterQuotaExceeded, 60),
        (Reply(503, None, {"retry-after": "9"}), AdapterFailed, 9),
        (Reply(500, b"oops"), AdapterFailed, 15),
        (Reply(200, b'{"cut": ['), AdapterFailed, 15),
        (Reply(401, {"why": "no"}), AdapterRefused, 0),
        (Reply(403, {"why": "no"}), AdapterRefused, 0),
        (Reply(400, {"why": "no"}), AdapterRefused, 0),
        (Reply(404, {"why": "no"}), NotFound, 0),
    ],
)
def test_http_status_maps_to_an_error_with_its_retry_delay(
    server: Echo, caller: Make, reply: Reply, kind: type[LakeSyncError], wait_s: int
) -> None:
    server.faults.append(reply)
    with pytest.raises(kind) as raised:
        caller(server).get("/a")

    assert type(raised.value) is kind
    assert raised.value.retry_after_s == wait_s
    assert (raised.value.retry is Retry.LATER) is (wait_s > 0)
    assert SECRET not in raised.value.message


@pytest.mark.law("N6")
def test_retry_date_is_read_relative_to_the_clock_of_the_source(server: Echo, caller: Make) -> None:
    server.now_s = lambda: 1_700_000_000.0  # type: ignore[method-assign]
    for headers in (
        {"retry-after": "Tue, 14 Nov 2023 22:14:00 GMT"},
        {"x-ratelimit-reset": "2023-11-14T22:14Z"},
    ):
        server.faults.append(Reply(429, None, headers))
        with pytest.raises(AdapterQuotaExceeded) as raised:
            caller(server).get("/a")

        assert raised.value.retry_after_s == 40


@pytest.mark.law("N9")
def test_truncated_oversized_and_late_answers_are_errors(
    server: Echo, caller: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.truncates = 1
    with pytest.raises(AdapterFailed):
        caller(server).get("/a")
    server.hangs_up_after = 1
    with pytest.raises(AdapterFailed):
        caller(server).get("/a")
    monkeypatch.setattr(http, "ANSWER_BYTES_MAX", 10)
    with pytest.raises(AdapterRefused, match="over 10 bytes"):
        caller(server).get("/a")
    server.close()
    with pytest.raises((AdapterUnreachable, AdapterTimedOut)):
        caller(server, answer_s_max=0.2).get("/a")


def test_none_parameters_are_omitted_and_values_are_escaped(server: Echo, caller: Make) -> None:
    with_query = caller(server).get("/a", b="x y&z", c=None)

    assert with_query == {"path": "/a", "query": {"b": "x y&z"}}
    assert server.asked[0].headers["authorization"] == SECRET
