"""What each `SignedObjects` does: in memory, and on S3 as the AWS emulator plays it.

The addresses are used as anybody would who has them: over HTTP, with nothing but their headers.
"""

from __future__ import annotations

import hashlib
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import boto3
import httpx
import pytest
from botocore.config import Config

from lakesync.adapters.lake.memory import MemorySignedObjects
from lakesync.adapters.lake.s3 import S3SignedObjects
from lakesync.errors import LakeSyncError
from lakesync.runtime.settings import AttachmentSettings
from lakesync.runtime.wiring import signed_objects
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakesync.ports import SignedObjects, SignedRequest
    from tools.local_stack.aws_emulator import Emulator

_numbers = itertools.count()
PART = b"x" * 5_242_880
REST = b"the rest"


@dataclass
class World:
    """A store, and how its signed requests are made."""

    objects: SignedObjects
    send: Callable[[SignedRequest, bytes], bool]
    """Tells whether the store took the bytes."""
    receive: Callable[[SignedRequest, int], bytes]


@pytest.fixture(params=["memory", pytest.param("s3", marks=pytest.mark.emulator)])
def world(request: pytest.FixtureRequest) -> World:
    """An empty store of each kind."""
    if request.param == "memory":
        return in_memory()
    return on_s3(request.getfixturevalue("emulator"))


def in_memory() -> World:
    objects = MemorySignedObjects()

    def send(signed: SignedRequest, content: bytes) -> bool:
        try:
            objects.send_bytes(signed, content)
        except LakeSyncError:
            return False
        return True

    return World(
        objects, send, lambda signed, start: b"".join(objects.receive_bytes(signed, start))
    )


def on_s3(emulator: Emulator) -> World:
    config = Config(signature_version="s3v4", s3={"addressing_style": "virtual"})
    client: Any = boto3.client("s3", config=config, **emulator.client_options())
    bucket = f"attachments-{next(_numbers)}"
    client.create_bucket(Bucket=bucket)

    def send(signed: SignedRequest, content: bytes) -> bool:
        answer = httpx.put(
            signed.url, headers=dict(signed.headers), content=content, timeout=PATIENCE_S
        )
        return answer.status_code in {200, 412}

    def receive(signed: SignedRequest, start: int) -> bytes:
        ranged = {"range": f"bytes={start}-"} if start else {}
        answer = httpx.get(signed.url, headers=dict(signed.headers) | ranged, timeout=PATIENCE_S)
        answer.raise_for_status()
        return answer.content

    return World(S3SignedObjects(bucket, client), send, receive)


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.mark.law("G2")
def test_only_the_signed_content_is_stored(world: World) -> None:
    key, content = "attachments/g1/one", b"the bytes"
    assert world.objects.size_of(key) is None
    signed = world.objects.sign_put(key, len(content), digest(content))

    assert not world.send(signed, b"others...")
    assert world.objects.size_of(key) is None
    assert world.send(signed, content)
    assert world.send(signed, content)
    assert world.objects.size_of(key) == len(content)
    assert world.receive(world.objects.sign_get(key, "text/plain"), 0) == content
    assert world.receive(world.objects.sign_get(key, "text/plain"), 4) == content[4:]


def test_size_of_a_key_ignores_longer_keys_with_its_prefix(world: World) -> None:
    longer = world.objects.sign_put("attachments/g1/onemore", 1, digest(b"x"))
    assert world.send(longer, b"x")

    assert world.objects.size_of("attachments/g1/one") is None


@pytest.mark.law("G2", "G3")
def test_upload_parts_in_any_order_become_one_object_at_the_end(world: World) -> None:
    key, digests = "attachments/g1/parts", (digest(PART), digest(REST))
    upload = world.objects.begin_upload(key)
    assert world.objects.parts(key, upload) == {}
    last = world.objects.sign_part(key, upload, 2, len(REST), digests[1])
    assert last.part == 2

    assert not world.send(last, b"another ")
    assert world.send(last, REST)
    assert set(world.objects.parts(key, upload) or {}) == {2}
    assert world.send(world.objects.sign_part(key, upload, 1, len(PART), digests[0]), PART)
    tags = world.objects.parts(key, upload)
    assert tags is not None
    assert set(tags) == {1, 2}
    assert world.objects.size_of(key) is None
    world.objects.end_upload(key, upload, tags, digests)
    world.objects.end_upload(key, upload, tags, digests)
    assert world.objects.size_of(key) == len(PART) + len(REST)
    assert world.objects.parts(key, upload) is None
    assert world.receive(world.objects.sign_get(key, "text/plain"), len(PART)) == REST


@pytest.mark.law("G2")
def test_upload_whose_parts_differ_from_the_digests_is_refused(world: World) -> None:
    key = "attachments/g1/wrong"
    upload = world.objects.begin_upload(key)
    assert world.send(world.objects.sign_part(key, upload, 1, len(REST), digest(REST)), REST)

    with pytest.raises(LakeSyncError):
        world.objects.end_upload(key, upload, world.objects.parts(key, upload) or {}, [digest(b"")])
    assert world.objects.size_of(key) is None


@pytest.mark.law("G5")
def test_upload_is_found_only_under_its_key(world: World) -> None:
    upload = world.objects.begin_upload("attachments/g1/own")

    assert world.objects.parts("attachments/g2/own", upload) is None
    assert world.objects.parts("attachments/g1/own", "none-of-ours") is None


def test_second_completed_upload_of_a_key_leaves_its_size_unchanged(world: World) -> None:
    key = "attachments/g1/race"
    uploads = [world.objects.begin_upload(key) for _ in range(2)]
    for upload in uploads:
        assert world.send(world.objects.sign_part(key, upload, 1, len(REST), digest(REST)), REST)
    for upload in uploads:
        tags = world.objects.parts(key, upload) or {}
        world.objects.end_upload(key, upload, tags, [digest(REST)])

    assert world.objects.size_of(key) == len(REST)


@pytest.mark.emulator
def test_signed_urls_cover_length_and_checksum_and_put_only_new_objects(
    emulator: Emulator,
) -> None:
    objects = on_s3(emulator).objects
    put = objects.sign_put("attachments/g1/one", 3, digest(b"abc"))
    part = objects.sign_part("attachments/g1/one", "u", 1, 3, digest(b"abc"))

    for signed in (put, part):
        names = httpx.URL(signed.url).params["X-Amz-SignedHeaders"].split(";")
        assert set(names) == {"host", *signed.headers}
        assert {"content-length", "x-amz-checksum-sha256"} <= set(names)
        assert 0 < int(httpx.URL(signed.url).params["X-Amz-Expires"]) <= 900
    assert "if-none-match" in put.headers
    read = httpx.URL(objects.sign_get("attachments/g1/one", "text/html").url).params
    assert read["response-content-disposition"] == "attachment"


@pytest.mark.parametrize("region", ["us-east-1", "eu-central-1"])
def test_signed_url_names_the_host_of_the_bucket(
    region: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    settings = AttachmentSettings(
        region=region, buffer_table="b", lake_bucket="lake", attachment_bytes_max=1,
        quota_pushes=0, quota_deltas=0, quota_bytes=0,
    )  # fmt: skip
    host = httpx.URL(signed_objects(settings).sign_get("attachments/g1/one", "a/b").url).host

    assert host in {"lake.s3.amazonaws.com", f"lake.s3.{region}.amazonaws.com"}
    assert region in host or region == "us-east-1"
