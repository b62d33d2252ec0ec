"""Bodies as API Gateway hands them over: as text and as base64, and what did not survive that."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from lakesync.core.delta import Op, make_delta
from lakesync.core.messages import Push
from lakesync.wire import jsonish, proto
from tests.support import local_gateway
from tests.support.local_gateway import GATEWAY, LocalGateway, serve_gateway
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

JSON, PROTOBUF = "application/json", "application/x-protobuf"
FORMS = ["text", "base64"]


@pytest.fixture(scope="module")
def gateway() -> Iterator[LocalGateway]:
    with serve_gateway() as served:
        yield served


@pytest.fixture
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Let the events of requests have this form; as text, other bytes are replaced on the way."""
    original = local_gateway._event

    def event(method: str, target: str, headers: Mapping[str, str], body: bytes) -> dict[str, Any]:
        made = original(method, target, headers, body)
        if request.param == "text":
            made |= {"body": body.decode(errors="replace"), "isBase64Encoded": False}
        return made

    monkeypatch.setattr(local_gateway, "_event", event)
    return str(request.param)


def pushed(served: LocalGateway, body: bytes, **headers: str) -> httpx.Response:
    own = {"Authorization": f"Bearer {served.token('phone')}", "content-type": JSON}
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    url = f"{served.url}/v1/sync/{GATEWAY}/push"
    return httpx.post(url, content=body, headers=own | named, timeout=PATIENCE_S)


def a_push(row: str, text: str) -> Push:
    delta = make_delta(Op.INSERT, "notes", row, {"text": text}, client_id="phone", hlc=1 << 16)
    return Push("phone", ((0, delta),))


def stored(served: LocalGateway) -> str:
    token = {"Authorization": f"Bearer {served.token('phone')}", "Accept": JSON}
    url = f"{served.url}/v1/sync/{GATEWAY}/pull?clientId=other&since=0&limit=1000"
    return httpx.get(url, headers=token, timeout=PATIENCE_S).text


@pytest.mark.law("W9")
@pytest.mark.parametrize("form", FORMS, indirect=True)
@pytest.mark.parametrize("text", ["plain", "Zoë 🚲", "\N{REPLACEMENT CHARACTER}", "\u2028"])
def test_json_is_stored_as_sent_from_text_and_base64_bodies(
    gateway: LocalGateway, form: str, text: str
) -> None:
    row = f"{form}-{ord(text[-1])}"

    answer = pushed(gateway, jsonish.encode_push(a_push(row, text)))

    assert (answer.status_code, answer.json()["accepted"]) == (200, 1)
    deltas = json.loads(stored(gateway))["deltas"]
    (columns,) = [delta["columns"] for delta in deltas if delta["rowId"] == row]
    assert columns == [{"column": "text", "value": text}]


@pytest.mark.law("W9")
@pytest.mark.parametrize("form", FORMS, indirect=True)
@pytest.mark.parametrize("bad", [b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xc0\xaf", b"a\x80\x80\x80b"])
@pytest.mark.parametrize("has_id", [True, False])
def test_invalid_utf_8_is_refused_in_text_and_base64_bodies(
    gateway: LocalGateway, form: str, bad: bytes, *, has_id: bool
) -> None:
    fields = json.loads(jsonish.encode_push(a_push("bad", "HERE")))
    if not has_id:
        del fields["deltas"][0]["deltaId"]
    body = json.dumps(fields).encode().replace(b"HERE", bad)

    answer = pushed(gateway, body)

    assert answer.status_code == 400, answer.text
    assert answer.json()["code"] == "VALIDATION_ERROR"
    assert "not valid UTF-8" in answer.json()["error"]
    assert '"bad"' not in stored(gateway)


@pytest.mark.law("W9")
def test_a_compressed_body_is_accepted_as_base64_and_refused_as_text(
    gateway: LocalGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = jsonish.encode_push(a_push("packed", "x" * 500))
    packed = gzip.compress(body)

    answer = pushed(gateway, packed, content_encoding="gzip")
    assert (answer.status_code, answer.json()["accepted"]) == (200, 1)

    original = local_gateway._event

    def as_text(*arguments: Any) -> dict[str, Any]:
        made = original(*arguments)
        return made | {"body": packed.decode(errors="replace"), "isBase64Encoded": False}

    with monkeypatch.context() as patch:
        patch.setattr(local_gateway, "_event", as_text)
        answer = pushed(gateway, packed, content_encoding="gzip")
    assert (answer.status_code, answer.json()["field"]) == (400, "Content-Encoding")
    assert "read as text on its way" in answer.json()["error"]


@pytest.mark.law("W9")
@pytest.mark.parametrize(("form", "status"), [("text", 400), ("base64", 200)], indirect=["form"])
def test_protobuf_is_accepted_as_base64_and_refused_as_text(
    gateway: LocalGateway, form: str, status: int
) -> None:
    body = proto.encode_push(a_push(f"proto-{form}", "x"))

    answer = pushed(gateway, body, content_type=PROTOBUF)

    assert answer.status_code == status
    if status == 200:
        assert proto.decode_receipt(answer.content).accepted == 1


@pytest.mark.law("W4", "W9")
def test_a_body_with_an_unpaired_surrogate_is_refused(
    gateway: LocalGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = local_gateway._event

    def event(*arguments: Any) -> dict[str, Any]:
        return original(*arguments) | {"body": '{"clientId": "\ud800"}', "isBase64Encoded": False}

    monkeypatch.setattr(local_gateway, "_event", event)
    answer = pushed(gateway, b"{}")

    assert (answer.status_code, answer.json()["code"]) == (400, "VALIDATION_ERROR")
