"""Signed webhooks: what a receiver gets and verifies, what its answers mean, where none may go."""

from __future__ import annotations

import base64
import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest

from lakesync.actions import Done, Run, declared_actions
from lakesync.actions.declared_actions import ANSWER_BYTES_MAX, Webhook, WebhookSettings
from lakesync.actions.engine import NOT_DONE, UNKNOWN
from lakesync.actions.service import registration_from
from lakesync.connectors.http import is_listed, target_of
from lakesync.connectors.port import Outside, signature_of
from lakesync.errors import (
    ActionFailed,
    AdapterQuotaExceeded,
    AdapterRefused,
    AdapterUnreachable,
    OutcomeUnknown,
    ValidationFailed,
)
from lakesync.result import Err, Ok
from tests.support.acting import Acting

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lakesync.errors import LakeSyncError

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
RUN = Run("0" * 32, "g", "c", "ann", "ship", {"order": "ü1"}, 4.0)


class Receiver:
    """A webhook's other side: what it got, and what it answers."""

    def __init__(self) -> None:
        self.url = ""
        self.got: list[tuple[str, dict[str, str], bytes]] = []
        self.answers: list[tuple[int, dict[str, str], bytes]] = []
        self.hangs_up = False

    @property
    def origin(self) -> str:
        return self.url.removesuffix("/hook")

    def post(self, **more: Any) -> Any:
        """Run an action with it."""
        return self.handler(**more).execute(RUN)

    def handler(self, **more: Any) -> Webhook:
        fields = {"url": self.url, "secret": SECRET, "actions": [{"name": "ship"}]} | more
        return Webhook(WebhookSettings.model_validate(fields), (self.origin,))


@contextmanager
def receiving() -> Iterator[Receiver]:
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            receiver.got.append((self.path, {k.lower(): v for k, v in self.headers.items()}, body))
            if receiver.hangs_up:
                self.close_connection = True
                return
            status, headers, answer = (
                receiver.answers.pop(0) if receiver.answers else (200, {}, b"")
            )
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    receiver.url = f"http://127.0.0.1:{server.server_port}/hook"
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as made:
        yield made


@pytest.mark.law("X7")
def test_signature_matches_the_standard_webhooks_example() -> None:
    body = b'{"test": 2432232314}'

    assert signature_of(SECRET, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, body) == (
        "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    )


@pytest.mark.law("X7")
def test_receiver_gets_the_action_signed_with_its_time_and_run_id(receiver: Receiver) -> None:
    receiver.answers = [(201, {}, b'{"shipment": 7}')]
    assert receiver.post() == Ok(Done({"status": 201, "body": {"shipment": 7}}))

    path, headers, body = receiver.got[0]
    message = json.loads(body)
    assert path == "/hook"
    assert headers["webhook-id"] == message["id"] == RUN.run_id
    assert headers["webhook-signature"] == signature_of(
        SECRET, RUN.run_id, int(headers["webhook-timestamp"]), body
    )
    assert headers["host"] == receiver.origin.removeprefix("http://")
    kept = ("type", "gateway", "clientId", "user", "data")
    assert [message[name] for name in kept] == ["ship", "g", "c", "ann", {"order": "ü1"}]


@pytest.mark.law("X3", "X7")
@pytest.mark.parametrize(
    ("status", "error"),
    [
        (302, ActionFailed), (400, ActionFailed), (404, ActionFailed), (410, ActionFailed),
        (429, AdapterQuotaExceeded), (503, AdapterQuotaExceeded),
        (500, OutcomeUnknown), (502, OutcomeUnknown), (504, OutcomeUnknown),
    ],
)  # fmt: skip
def test_http_status_maps_to_an_error(
    receiver: Receiver, status: int, error: type[LakeSyncError]
) -> None:
    headers = {"retry-after": "7", "location": "http://169.254.169.254/"}
    receiver.answers = [(status, headers, b"no such order")]
    answered = receiver.post()

    assert isinstance(answered, Err)
    assert type(answered.error) is error
    assert len(receiver.got) == 1
    if error is AdapterQuotaExceeded:
        assert answered.error.retry_after_s == 7
    if error is ActionFailed:
        assert "no such order" in answered.error.message


@pytest.mark.law("X3", "X7")
def test_lost_answer_leaves_the_outcome_unknown_and_an_unreachable_receiver_does_not() -> None:
    with receiving() as receiver:
        receiver.hangs_up = True
        lost = receiver.post()
    gone = receiver.post()

    assert isinstance(lost, Err)
    assert type(lost.error) is OutcomeUnknown
    assert isinstance(gone, Err)
    assert type(gone.error) is AdapterUnreachable
    assert receiver.handler().lookup(RUN) == Ok(UNKNOWN)
    assert receiver.handler(dropsRepeats=True).lookup(RUN) == Ok(NOT_DONE)


@pytest.mark.law("X7")
def test_long_answer_is_truncated(receiver: Receiver) -> None:
    receiver.answers = [(200, {}, b"x" * (ANSWER_BYTES_MAX * 4))]

    assert receiver.post() == Ok(Done({"status": 200, "body": "x" * ANSWER_BYTES_MAX}))


URL = "https://hooks.example.com/a?b=c"


@pytest.mark.law("X7")
@pytest.mark.parametrize(
    ("url", "allowed", "listed"),
    [
        (URL, ["*"], True),
        (URL, ["hooks.example.com"], True),
        (URL, ["*.example.com"], True),
        (URL, ["example.com"], False),
        (URL, ["*.hooks.example.com"], False),
        (URL, [], False),
        ("https://evilexample.com/", ["*.example.com"], False),
        ("https://hooks.example.com@evil.test/", ["hooks.example.com"], False),
        ("https://user@hooks.example.com/", ["*"], False),
        ("http://hooks.example.com/", ["*", "hooks.example.com"], False),
        ("http://10.0.0.1:8080/x", ["http://10.0.0.1:8080"], True),
        ("http://10.0.0.1:8081/x", ["http://10.0.0.1:8080"], False),
        ("ftp://hooks.example.com/", ["*"], False),
        ("https://[::1/", ["*"], False),
        ("https:///x", ["*"], False),
    ],
)
def test_url_is_allowed_only_if_the_operator_lists_its_host(
    *, url: str, allowed: list[str], listed: bool
) -> None:
    assert is_listed(url, allowed) is listed


@pytest.mark.law("X7")
@pytest.mark.parametrize(
    "within",
    [
        "127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1",
        "0.0.0.0", "224.0.0.1", "255.255.255.255", "::1", "fe80::1%eth0", "fd00::1",  # noqa: S104
        "::ffff:10.0.0.1", "2002:7f00:1::", "64:ff9b:1::1", "fd00:ec2::254",
    ],
)  # fmt: skip
def test_host_name_that_resolves_to_a_private_address_is_refused(within: str) -> None:
    for addresses in ([within], ["93.184.216.34", within]):
        with pytest.raises(AdapterRefused, match="private address"):
            target_of(URL, ["*"], lambda *_, listed=addresses: listed)
    assert target_of(URL, ["https://hooks.example.com"], lambda *_: [within]).address == within


@pytest.mark.law("X7")
def test_checked_address_is_the_one_connected_to() -> None:
    asked: list[tuple[str, int]] = []

    def resolve(host: str, port: int) -> list[str]:
        asked.append((host, port))
        return ["93.184.216.34"] if len(asked) == 1 else ["127.0.0.1"]

    target = target_of("https://hooks.example.com:8443/a?b=c", ["*"], resolve)
    assert asked == [("hooks.example.com", 8443)]
    assert (target.address, target.authority, target.path) == (
        "93.184.216.34", "hooks.example.com:8443", "/a?b=c",
    )  # fmt: skip


@pytest.mark.law("X6", "X7")
@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"url": "https://internal.test/"}, "does not allow"),
        ({"url": "ftp://hooks.example.com/"}, "url begins with https"),
        ({"secret": "hush"}, "a signing secret is"),
        ({"secret": "whsec_" + base64.b64encode(b"short").decode()}, "a signing secret is"),
        ({"actions": []}, "actions"),
        ({"actions": [{"name": "a"}, {"name": "a"}]}, "declared twice"),
        ({"actions": [{"name": "a", "params": {"type": "objekt"}}]}, "not a JSON Schema"),
        (
            {"actions": [{"name": "a", "params": {"$ref": "http://evil.test/"}}]},
            "not a JSON Schema",
        ),
        ({"actions": [{"name": "a", "params": {"x": "y" * 20_000}}]}, "at most"),
    ],
)
def test_invalid_webhook_settings_are_refused_at_registration(
    more: dict[str, Any], message: str
) -> None:
    acting = Acting(outside=Outside(("hooks.example.com",)))
    settings = {"url": URL, "secret": SECRET, "actions": [{"name": "ship"}]} | more
    body = {"name": "hooks", "type": "webhook", "configuration": settings}
    with pytest.raises(ValidationFailed, match=message) as refused:
        acting.admin.register("g", registration_from(body))

    assert "hush" not in refused.value.message
    assert acting.admin.all("g") == []
    assert declared_actions.WEBHOOK.name == "webhook"
