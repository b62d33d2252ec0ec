"""Attachments over HTTP: to a gateway that serves, and to S3 as the AWS emulator plays it."""

from __future__ import annotations

import json
import logging
import random
import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import boto3
import httpx
import pytest
from botocore.config import Config

from lakesync.adapters.lake.s3 import S3SignedObjects
from lakesync.client import Client, HttpTransport
from lakesync.core.attachments import PART_BYTES, Attachment
from lakesync.errors import LakeSyncError, Retry
from lakesync.ports import SignedRequest
from lakesync.result import Err
from tests.support.local_gateway import GATEWAY, LocalGateway, serve_gateway

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tools.local_stack.aws_emulator import Emulator

PLACE = ("todos", "t1", "photo")
FILE = Attachment("0" * 32, "a" * 64, 7, "text/plain")
SIGNED = SignedRequest("https://store/attachments/1?X-Amz-Signature=s", {"x-signed": "yes"})


@pytest.fixture
def served(emulator: Emulator) -> Iterator[LocalGateway]:
    """A gateway whose attachments are on S3."""
    with serve_gateway() as gateway:
        config = Config(signature_version="s3v4", s3={"addressing_style": "virtual"})
        s3: Any = boto3.client("s3", config=config, **emulator.client_options())
        bucket = f"attachments-{uuid.uuid4().hex}"
        s3.create_bucket(Bucket=bucket)
        gateway.signed = S3SignedObjects(bucket, s3)
        yield gateway
        s3.close()


class Cutting(httpx.BaseTransport):
    """A network that cuts every so many-th request, or its answer in the middle."""

    def __init__(self, every: int) -> None:
        self._inner = httpx.HTTPTransport()
        self._every = every
        self._number = 0
        self.stored_bytes = 0

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Pass a request on, or cut it."""
        self._number += 1
        is_cut = self._every and self._number % self._every == 0
        if is_cut and request.method != "GET":
            raise httpx.ReadError("the line broke", request=request)
        response = self._inner.handle_request(request)
        if is_cut:
            response.read()
            content, half = response.content, len(response.content) // 2

            def cut() -> Iterator[bytes]:
                yield content[:half]
                raise httpx.ReadError("the line broke", request=request)

            return httpx.Response(response.status_code, headers=response.headers, content=cut())
        self.stored_bytes += len(request.content) if request.method == "PUT" else 0
        return response

    def close(self) -> None:
        """Close the connections."""
        self._inner.close()


@contextmanager
def client_of(
    served: LocalGateway, name: str, folder: Path, http: httpx.BaseTransport | None = None
) -> Iterator[Client]:
    token = served.token(name)
    with (
        HttpTransport(served.url, GATEWAY, token=token, http=http) as transport,
        Client(folder / f"{name}.db", client_id=name, transport=transport) as client,
    ):
        yield client


def until_done(operation: Any, times: int = 20) -> Any:
    for _ in range(times):
        result = operation()
        if not isinstance(result, Err):
            return result.unwrap()
        assert result.error.code == "UNREACHABLE", result.error
    pytest.fail("it does not end")


@pytest.mark.emulator
@pytest.mark.law("G2", "G3", "G6", "G7")
@pytest.mark.parametrize("size", [0, 1_000, 2 * PART_BYTES + 1_000])
def test_an_attachment_reaches_s3_and_back_over_a_breaking_connection(
    served: LocalGateway, tmp_path: Path, size: int
) -> None:
    content, network = random.Random(size).randbytes(size), Cutting(4)
    with client_of(served, "phone", tmp_path, network) as phone:
        file = phone.attachments.add(content, media_type="image/png").unwrap()
        phone.insert("todos", "t1", {"photo": str(file)}).unwrap()
        until_done(phone.sync)
        until_done(phone.attachments.upload)
    # A part that was sent is not sent again, though the line broke.
    assert network.stored_bytes == size
    with client_of(served, "laptop", tmp_path, Cutting(3)) as laptop:
        until_done(laptop.sync)
        path = until_done(lambda: laptop.attachments.fetch(*PLACE))
        assert path.read_bytes() == content


@pytest.mark.emulator
def test_fetching_an_attachment_before_its_upload_reports_not_yet_uploaded(
    served: LocalGateway, tmp_path: Path
) -> None:
    with client_of(served, "phone", tmp_path) as phone:
        file = phone.attachments.add(b"later").unwrap()
        phone.insert("todos", "t1", {"photo": str(file)}).unwrap()
        phone.sync().unwrap()
        with client_of(served, "laptop", tmp_path) as laptop:
            laptop.sync().unwrap()
            result = laptop.attachments.fetch(*PLACE)
            assert isinstance(result, Err)
            assert (result.error.code, result.error.retry_after_s) == ("NOT_YET_UPLOADED", 30)


class Store:
    """A store, and a gateway, that answer what they are told to."""

    def __init__(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.status, self.body, self.headers = status, body, headers
        self.requests: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        headers = self.headers | ({"etag": '"7"'} if self.status in {200, 206} else {})
        return httpx.Response(self.status, content=self.body, headers=headers)

    def transport(self) -> HttpTransport:
        return HttpTransport(
            "https://gateway", "g1", token="the-token", http=httpx.MockTransport(self)
        )


def xml(code: str) -> bytes:
    return f"<Error><Code>{code}</Code><Message>{SIGNED.url}</Message></Error>".encode()


@pytest.mark.parametrize(
    ("status", "body", "code"),
    [
        (400, xml("BadDigest"), "DAMAGED_ON_THE_WAY"),
        (400, xml("InvalidRequest"), "ADAPTER_ERROR"),
        (403, xml("AccessDenied"), "UNAVAILABLE"),
        (404, xml("NoSuchUpload"), "UNAVAILABLE"),
        (429, b"", "RATE_LIMITED"),
        (503, xml("SlowDown"), "RATE_LIMITED"),
        (500, xml("InternalError"), "ADAPTER_ERROR"),
        (301, b"<html>moved</html>", "ADAPTER_ERROR"),
    ],
)
def test_a_refusal_by_the_object_store_maps_to_our_error_without_the_signed_url(
    status: int, body: bytes, code: str
) -> None:
    with Store(status, body).transport() as transport:
        for ask in (
            lambda: transport.send_bytes(SIGNED, b"content"),
            lambda: [*transport.receive_bytes(SIGNED, 0)],
        ):
            with pytest.raises(LakeSyncError) as refused:
                ask()
            assert refused.value.code == code
            assert "Signature" not in refused.value.message


@pytest.mark.law("G3")
@pytest.mark.parametrize(
    ("status", "headers", "body"),
    [
        (200, {}, b"<html>log in</html>"),
        (302, {"location": "https://login.example/"}, b""),
        (403, {}, b"<html>log in</html>"),
        (404, {}, b""),
        (412, {}, b"<html>log in</html>"),
        (413, {}, b"<html>too large</html>"),
        (511, {}, b""),
    ],
)
def test_an_answer_not_from_the_object_store_is_foreign_and_retried_later(
    status: int, headers: dict[str, str], body: bytes
) -> None:
    def answer(_request: httpx.Request) -> httpx.Response:
        return httpx.Response(status, content=body, headers=headers)

    http = httpx.MockTransport(answer)
    with HttpTransport("https://gateway", "g1", token="the-token", http=http) as transport:
        for ask in (
            lambda: transport.send_bytes(SIGNED, b"content"),
            lambda: [*transport.receive_bytes(SIGNED, 0)],
        ):
            with pytest.raises(LakeSyncError) as refused:
                ask()
            assert (refused.value.retry, refused.value.is_foreign) == (Retry.LATER, True)
            assert "not that of the store" in refused.value.message


@pytest.mark.parametrize(("status", "body"), [(200, b""), (412, xml("PreconditionFailed"))])
def test_the_object_store_receives_the_signed_request_and_never_the_token(
    status: int, body: bytes
) -> None:
    store = Store(status, body)
    with store.transport() as transport:
        transport.send_bytes(SIGNED, b"content")

    [request] = store.requests
    assert (request.method, request.headers["x-signed"]) == ("PUT", "yes")
    assert "authorization" not in request.headers
    assert request.content == b"content"


def test_signed_url_signatures_are_not_logged_and_the_apps_own_requests_still_are(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = Store(200, b"content")
    with caplog.at_level(logging.DEBUG), store.transport() as transport:
        transport.send_bytes(SIGNED, b"content")
        for _ in transport.receive_bytes(SIGNED, 0):
            with httpx.Client(transport=httpx.MockTransport(store)) as http:
                http.get("https://elsewhere/?page=2")

    assert "Signature" not in caplog.text
    assert caplog.text.count("https://store/attachments/1?…") == 2
    assert "https://elsewhere/?page=2" in caplog.text


@pytest.mark.parametrize(
    ("status", "body", "start", "received"),
    [
        (200, b"content", 0, b"content"),
        (206, b"tent", 3, b"tent"),
        (200, b"content", 3, b"tent"),
        (416, b"", 7, b""),
    ],
)
def test_an_attachment_download_resumes_from_its_last_byte(
    status: int, body: bytes, start: int, received: bytes
) -> None:
    store = Store(status, body)
    with store.transport() as transport:
        assert b"".join(transport.receive_bytes(SIGNED, start)) == received
    [request] = store.requests
    assert request.headers.get("range") == (f"bytes={start}-" if start else None)


@pytest.mark.parametrize(
    "answer",
    [[], {}, {"stored": False}, {"stored": False, "requests": 7, "partsStored": 0},
     {"stored": False, "requests": [{}], "partsStored": 0},
     {"stored": False, "requests": [], "partsStored": "x"}],
)  # fmt: skip
def test_a_malformed_answer_to_an_upload_request_is_not_taken_for_the_gateways(answer: Any) -> None:
    store = Store(200, json.dumps(answer).encode(), **{"content-type": "application/json"})
    with store.transport() as transport, pytest.raises(LakeSyncError) as refused:
        transport.ask_upload(FILE, [], "")
    assert refused.value.code == "NOT_THE_GATEWAY"
    assert store.requests[0].headers["authorization"] == "Bearer the-token"
