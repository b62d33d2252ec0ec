"""Encodings and compression of bodies, always bounded."""

from __future__ import annotations

import gzip
import tracemalloc
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakesync.errors import BodyTooLarge, LakeSyncError, ValidationFailed
from lakesync.runtime.http import (
    GZIP_MEMBERS_MAX,
    Encoding,
    accepts_gzip,
    answer_encoding,
    compressed,
    read_body,
    request_encoding,
)

MB = 1024 * 1024


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (None, Encoding.JSON),
        ("", Encoding.JSON),
        ("application/json", Encoding.JSON),
        ("Application/JSON; charset=utf-8", Encoding.JSON),
        ("application/x-protobuf", Encoding.PROTOBUF),
    ],
)
def test_the_content_type_selects_the_request_encoding(
    header: str | None, expected: Encoding
) -> None:
    assert request_encoding(header) is expected


@pytest.mark.parametrize("header", ["text/plain", "application/xml", "json", ";"])
def test_an_unknown_content_type_is_named(header: str) -> None:
    with pytest.raises(ValidationFailed) as caught:
        request_encoding(header)

    assert caught.value.field == "Content-Type"


@pytest.mark.parametrize(
    ("accept", "otherwise", "expected"),
    [
        (None, Encoding.JSON, Encoding.JSON),
        (None, Encoding.PROTOBUF, Encoding.PROTOBUF),
        ("*/*", Encoding.PROTOBUF, Encoding.PROTOBUF),
        ("text/html", Encoding.JSON, Encoding.JSON),
        ("application/x-protobuf", Encoding.JSON, Encoding.PROTOBUF),
        ("application/json", Encoding.PROTOBUF, Encoding.JSON),
        ("application/json;q=0.5, application/x-protobuf", Encoding.JSON, Encoding.PROTOBUF),
        ("application/json;q=0.5, application/x-protobuf;q=0.4", Encoding.PROTOBUF, Encoding.JSON),
        ("application/x-protobuf;q=0", Encoding.JSON, Encoding.JSON),
        ("application/x-protobuf;q=x", Encoding.JSON, Encoding.JSON),
    ],
)
def test_the_accept_header_selects_the_answer_encoding(
    accept: str | None, otherwise: Encoding, expected: Encoding
) -> None:
    assert answer_encoding(accept, otherwise) is expected


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (None, False), ("", False), ("br", False), ("gzip", True), ("br, gzip;q=0.1", True),
        ("gzip;q=0", False), ("*", True), ("*;q=0", False), ("gzip;q=0, *", False),
        ("identity", False), ("GZIP", True),
    ],
)  # fmt: skip
def test_gzip_is_used_only_when_accept_encoding_allows_it(
    header: str | None, *, expected: bool
) -> None:
    assert accepts_gzip(header) is expected


@given(st.binary(max_size=5000))
def test_a_compressed_body_is_read_back(body: bytes) -> None:
    assert read_body(compressed(body), "gzip", 5000) == body


def test_a_gzip_body_of_several_members_is_read_whole() -> None:
    assert read_body(gzip.compress(b"ab") + gzip.compress(b"cd"), "gzip", 4) == b"abcd"


@pytest.mark.parametrize("coding", [None, "identity", "gzip"])
def test_a_body_one_byte_over_the_limit_is_refused(coding: str | None) -> None:
    def sent(size: int) -> bytes:
        return gzip.compress(b"x" * size) if coding == "gzip" else b"x" * size

    assert len(read_body(sent(1000), coding, 1000)) == 1000
    with pytest.raises(BodyTooLarge, match="1000 bytes"):
        read_body(sent(1001), coding, 1000)


def test_a_decompression_bomb_is_refused_with_bounded_memory() -> None:
    bomb = gzip.compress(b"\0" * (300 * MB))
    tracemalloc.start()
    with pytest.raises(BodyTooLarge):
        read_body(bomb, "gzip", MB)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < 4 * MB


def test_a_decompression_bomb_of_many_gzip_members_is_refused() -> None:
    with pytest.raises(BodyTooLarge):
        read_body(gzip.compress(b"\0" * MB) * 50, "gzip", MB)


@pytest.mark.parametrize("member", [b"", b"a"])
def test_a_body_of_too_many_gzip_members_is_refused_early(
    member: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each member copies all that follows it: a million of them were minutes of work."""
    begun = 0

    def counted(window: int) -> Any:
        nonlocal begun
        begun += 1
        assert begun <= GZIP_MEMBERS_MAX
        return real(window)

    real = zlib.decompressobj
    monkeypatch.setattr("lakesync.runtime.http.zlib.decompressobj", counted)
    with pytest.raises(ValidationFailed, match="members"):
        read_body(gzip.compress(member) * 200_000, "gzip", 5 * MB)

    begun = 0
    most = gzip.compress(member) * GZIP_MEMBERS_MAX
    assert read_body(most, "gzip", MB) == member * GZIP_MEMBERS_MAX


@pytest.mark.parametrize("coding", ["br", "deflate", "gzip, gzip", "zstd"])
def test_an_unsupported_content_encoding_is_refused(coding: str) -> None:
    with pytest.raises(ValidationFailed) as caught:
        read_body(b"", coding, 10)

    assert caught.value.field == "Content-Encoding"


@given(st.binary(max_size=200))
def test_arbitrary_compressed_bodies_never_cause_an_internal_error(body: bytes) -> None:
    for sent in (body, compressed(b"hello" * 20)[: len(body)], compressed(body) + body):
        try:
            assert len(read_body(sent, "gzip", 1000)) <= 1000
        except LakeSyncError as error:
            assert error.status in {400, 413}  # noqa: PT017 - either outcome is right
