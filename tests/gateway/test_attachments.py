"""Attachments at the gateway: what may be sent, and who is given what reads a file."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakesync.adapters.lake.memory import MemorySignedObjects
from lakesync.buffer.memory_buffer import MemoryBuffer
from lakesync.core import attachments
from lakesync.core.attachments import Attachment, Digester, attachment
from lakesync.core.clock import STAMP_MAX
from lakesync.core.delta import Op
from lakesync.core.messages import Pull
from lakesync.errors import (
    BodyTooLarge,
    DamagedOnTheWay,
    NotFound,
    NotYetUploaded,
    ValidationFailed,
)
from lakesync.gateway.attachments import AttachmentService, object_key
from lakesync.ports import UploadState
from tests.support.builders import at_ms, delete, insert, push, update
from tests.support.gateways import administrator, deltas_of, puller, pusher
from tests.support.some import some

KEY = "0123456789abcdef" * 2
BYTES_MAX = 1_000_000


def of(content: bytes, media_type: str = "text/plain", key: str = KEY) -> tuple[Attachment, Any]:
    """Return the attachment of some bytes, and the digests of its parts."""
    digester = Digester()
    digester.update(content)
    file = attachment(key, digester.digest(), digester.size_bytes, media_type)
    return file, list(digester.part_digests())


class Gateways:
    """A store, gateways, and a client that uploads as clients do."""

    def __init__(self) -> None:
        self.buffer = MemoryBuffer()
        self.objects = MemorySignedObjects()
        self.service = AttachmentService(self.buffer, self.objects, bytes_max=BYTES_MAX)
        self.claims: dict[str, Any] = {}

    def upload(self, content: bytes, gateway: str = "g1") -> Attachment:
        file, parts = of(content)
        state = self.service.upload(gateway, str(file), parts)
        while not state.stored:
            for request in state.requests:
                start = file.part_start(request.part)
                piece = content[start : start + file.part_bytes(request.part)]
                self.objects.send_bytes(request, piece)
            state = self.service.upload(gateway, str(file), parts, state.upload)
        return file

    def read(self, file: Attachment, place: tuple[str, str, str], gateway: str = "g1") -> bytes:
        signed = self.service.download(gateway, self.claims, place, str(file))
        return b"".join(self.objects.receive_bytes(signed, 0))

    def is_given(self, file: Attachment, place: tuple[str, str, str]) -> bool:
        """Get whether a cell gives a file that is there; what does not says no more than that."""
        try:
            self.read(file, place)
        except NotFound as error:
            return error.code != "NOT_FOUND"
        return True


@pytest.fixture
def gateways() -> Gateways:
    return Gateways()


@pytest.fixture
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attachments, "PART_BYTES", 8)


PLACE = ("todos", "r1", "photo")


def test_attachment_is_uploaded_and_read_through_a_row(gateways: Gateways) -> None:
    file = gateways.upload(b"a photograph")
    pusher(gateways.buffer).push("g1", push(insert(at=at_ms(1), photo=str(file))))

    assert gateways.read(file, PLACE) == b"a photograph"


@pytest.mark.law("G3")
@pytest.mark.usefixtures("_small_parts")
@pytest.mark.parametrize("size", [0, 1, 8, 9, 64, 300])
def test_interrupted_upload_resumes_until_the_attachment_is_stored(
    gateways: Gateways, size: int
) -> None:
    content = random.Random(size).randbytes(size)
    file, parts = of(content)
    chance, upload, state = random.Random(1), "", UploadState(stored=False)
    for _ in range(1_000):
        state = gateways.service.upload("g1", str(file), parts, upload)
        if state.stored:
            break
        # Who dies before it noted the upload begins another one: then nothing is lost but time.
        upload = state.upload if chance.random() < 0.95 else upload
        for request in state.requests[: chance.randrange(1, 4)]:
            start = (request.part - 1) * 8
            gateways.objects.send_bytes(request, content[start : start + 8])
    key = object_key("g1", file)

    assert state == UploadState(stored=True, parts_stored=file.parts)
    assert gateways.objects.objects[key] == content
    assert gateways.service.upload("g1", str(file), parts).stored


@pytest.mark.law("G2")
@pytest.mark.usefixtures("_small_parts")
@pytest.mark.parametrize("size", [3, 8, 20])
def test_upload_request_rejects_bytes_other_than_the_reference_names(
    gateways: Gateways, size: int
) -> None:
    content = b"y" * size
    file, parts = of(content)
    for request in some(gateways.service.upload("g1", str(file), parts).requests):
        right = content[(request.part - 1) * 8 :][:8]
        for wrong in (b"", right[:-1], right + b"y", b"z" * len(right)):
            with pytest.raises(DamagedOnTheWay):
                gateways.objects.send_bytes(request, wrong)
    assert gateways.objects.objects == {}


@pytest.mark.law("G2")
def test_reference_with_another_length_names_another_attachment(gateways: Gateways) -> None:
    file, parts = of(b"four")
    longer = replace(file, size_bytes=5)
    for request in some(gateways.service.upload("g1", str(longer), parts).requests):
        for content in (b"four", b"four!"):
            with pytest.raises(DamagedOnTheWay):
                gateways.objects.send_bytes(request, content)
    gateways.upload(b"four")

    assert not gateways.service.upload("g1", str(longer), parts).stored


@pytest.mark.parametrize(
    ("reference", "parts", "upload"),
    [
        (None, [], ""),
        ("attachment:x", [], ""),
        ("ok", ["a" * 64], ""),
        ("ok", [7], ""),
        ("ok", [], "u" * 1_025),
    ],
)
def test_invalid_upload_request_is_refused(
    gateways: Gateways, reference: Any, parts: list[Any], upload: str
) -> None:
    reference = str(of(b"ok")[0]) if reference == "ok" else reference
    with pytest.raises(ValidationFailed):
        gateways.service.upload("g1", reference, parts, upload)
    assert gateways.objects.objects == {}


def test_too_large_attachment_is_refused_before_its_upload(gateways: Gateways) -> None:
    file = attachment(KEY, "a" * 64, BYTES_MAX + 1, "text/plain")

    with pytest.raises(BodyTooLarge, match=str(BYTES_MAX)):
        gateways.service.upload("g1", str(file))


def test_row_may_be_pushed_before_its_attachment_is_uploaded(gateways: Gateways) -> None:
    file, _ = of(b"later")
    pusher(gateways.buffer).push("g1", push(insert(at=at_ms(1), photo=str(file))))

    with pytest.raises(NotYetUploaded):
        gateways.read(file, PLACE)
    gateways.upload(b"later")
    assert gateways.read(file, PLACE) == b"later"


def test_attachment_is_read_through_a_reference_inside_a_json_cell(gateways: Gateways) -> None:
    file = gateways.upload(b"one of many")
    album = {"title": "summer", "photos": ["none", str(file)]}
    pusher(gateways.buffer).push("g1", push(insert(at=at_ms(1), album=album)))

    assert gateways.read(file, ("todos", "r1", "album")) == b"one of many"


@pytest.mark.law("G4")
@pytest.mark.parametrize(
    "place",
    [("todos", "r1", "title"), ("todos", "r2", "photo"), ("notes", "r1", "photo")],
)
def test_attachment_is_readable_only_through_a_cell_that_refers_to_it(
    gateways: Gateways, place: tuple[str, str, str]
) -> None:
    file = gateways.upload(b"a photograph")
    pusher(gateways.buffer).push("g1", push(insert(at=at_ms(1), photo=str(file), title="t")))

    with pytest.raises(NotFound) as refused:
        gateways.read(file, place)
    assert refused.value.code == "NOT_FOUND"


@pytest.mark.law("G4")
def test_changed_or_deleted_cell_no_longer_gives_access_to_its_attachment(
    gateways: Gateways,
) -> None:
    file, other = gateways.upload(b"one"), gateways.upload(b"another")
    warm = pusher(gateways.buffer)
    warm.push("g1", push(insert(at=at_ms(1), photo=str(file))))
    warm.push("g1", push(update(at=at_ms(2), photo=str(other))))
    with pytest.raises(NotFound):
        gateways.read(file, PLACE)
    assert gateways.read(other, PLACE) == b"another"
    warm.push("g1", push(delete(at=at_ms(3))))
    with pytest.raises(NotFound):
        gateways.read(other, PLACE)


@pytest.mark.law("G4", "V12")
def test_omitted_column_gives_its_attachment_only_to_clients_it_is_sent_to(
    gateways: Gateways,
) -> None:
    except_hr = [{"claim": "role", "op": "eq", "value": "hr"}]
    omit = [{"tables": ["todos"], "columns": ["photo"], "except": except_hr}]
    administrator(gateways.buffer).save_rules("g1", {"buckets": [], "omit": omit})
    file = gateways.upload(b"a contract")
    edit = push(insert(at=at_ms(1), photo=str(file), title="t"))
    pusher(gateways.buffer).push("g1", replace(edit, claims={"role": "hr"}))

    assert not gateways.is_given(file, PLACE)
    gateways.claims = {"role": "hr"}
    assert gateways.is_given(file, PLACE)


@pytest.mark.law("G4", "M10")
def test_attachment_of_a_dead_row_in_a_delete_wins_table_is_readable_only_after_an_insert(
    gateways: Gateways,
) -> None:
    schema = {"table": "todos", "columns": [{"name": "photo", "type": "string"}]}
    administrator(gateways.buffer).register_schema("g1", {**schema, "deleteWins": True})
    file, warm = gateways.upload(b"too late"), pusher(gateways.buffer)
    edits = [insert(at=at_ms(1)), delete(at=at_ms(2)), update(at=at_ms(3), photo=str(file))]
    for edit in edits:
        warm.push("g1", push(edit))
    assert not gateways.is_given(file, PLACE)

    warm.push("g1", push(insert(at=at_ms(4))))
    assert gateways.is_given(file, PLACE)


@pytest.mark.law("G5")
def test_attachment_of_one_gateway_is_not_readable_or_stored_in_another(gateways: Gateways) -> None:
    file = gateways.upload(b"of one gateway", "g1")
    for gateway in ("g1", "g2"):
        pusher(gateways.buffer).push(gateway, push(insert(at=at_ms(1), photo=str(file))))

    assert gateways.read(file, PLACE, "g1") == b"of one gateway"
    with pytest.raises(NotYetUploaded):
        gateways.read(file, PLACE, "g2")
    assert not gateways.service.upload("g2", str(file)).stored


owners = st.sampled_from(["ann", "bob", None])
RULES = {
    "buckets": [
        {
            "name": "own",
            "tables": ["todos"],
            "filters": [{"column": "owner", "op": "eq", "value": "jwt:sub"}],
        },
        {
            "name": "open",
            "tables": ["todos"],
            "filters": [{"column": "open", "op": "eq", "value": True}],
        },
    ]
}


@pytest.mark.law("G4")
@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.sampled_from("abc"), owners, st.booleans()), max_size=6),
    st.sampled_from(["ann", "bob", "eve"]),
)
def test_attachment_is_readable_exactly_by_clients_that_are_sent_its_row(
    edits: list[tuple[str, str | None, bool]], user: str
) -> None:
    gateways = Gateways()
    administrator(gateways.buffer).save_rules("g1", RULES)
    file = gateways.upload(b"what the rules guard")
    for number, (row, owner, is_open) in enumerate(edits, 1):
        columns: dict[str, Any] = {"owner": owner, "open": is_open, "photo": str(file)}
        edit = insert(row, at=at_ms(number), **columns)
        pusher(gateways.buffer).push("g1", replace(push(edit), claims={"sub": owner}))
    gateways.claims = {"sub": user}
    asked = Pull("reader", snapshot="begin", deltas_max=1_000, claims=gateways.claims)
    page = puller(gateways.buffer).pull("g1", replace(asked, at_least=STAMP_MAX))
    sent: set[str] = set()
    for delta in deltas_of(page):
        (sent.add if delta.op in {Op.INSERT, Op.UPDATE} else sent.discard)(delta.row_id)

    given_to = {row for row in "abc" if gateways.is_given(file, ("todos", row, "photo"))}
    assert given_to == sent
