"""Attachments of a client: added offline, uploaded and fetched whatever breaks."""

from __future__ import annotations

import io
import threading
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lakesync.client import AsyncClient, AttachmentStatus, Client, SyncLoop, salvage
from lakesync.core import attachments
from lakesync.errors import BodyTooLarge, DamagedOnTheWay, LakeSyncError, Unreachable
from lakesync.result import Err, Ok, Result
from lakesync.testing.memory_gateway import GatewayTransport, MemoryGateway
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lakesync.core.attachments import Attachment
    from lakesync.ports import SignedRequest, UploadState

CONTENT = bytes(range(200))
PLACE = ("todos", "t1", "photo")


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[MemoryGateway]:
    with MemoryGateway(tmp_path) as made:
        yield made


@pytest.fixture
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attachments, "PART_BYTES", 32)


def with_photo(client: Client, content: bytes = CONTENT, row: str = "t1") -> Attachment:
    """Add an attachment, and a row that refers to it."""
    file = client.attachments.add(content, media_type="image/png").unwrap()
    client.insert("todos", row, {"photo": str(file)}).unwrap()
    return file


def refusal(result: Result[Any, LakeSyncError]) -> LakeSyncError:
    """Return why something did not happen."""
    assert isinstance(result, Err), result
    return result.error


def files_of(client_id: str, folder: Path) -> set[str]:
    return {path.name for path in (folder / f"{client_id}.db-attachments").glob("*")}


def test_an_attachment_added_offline_is_fetched_by_another_client_after_its_upload(
    gateway: MemoryGateway,
) -> None:
    phone, laptop = gateway.client("phone"), gateway.client("laptop")
    gateway.online = False
    file = with_photo(phone)
    assert phone.attachments.path(file).unwrap() is not None
    assert refusal(phone.attachments.upload()).code == "UNREACHABLE"
    gateway.online = True
    phone.sync().unwrap()
    laptop.sync().unwrap()

    early = refusal(laptop.attachments.fetch(*PLACE))
    assert (early.code, early.retry_after_s > 0) == ("NOT_YET_UPLOADED", True)
    assert phone.attachments.upload().unwrap().stored == 1
    assert laptop.attachments.path(file).unwrap() is None
    assert laptop.attachments.fetch(*PLACE).unwrap().read_bytes() == CONTENT
    gateway.online = False
    assert laptop.attachments.fetch(*PLACE).unwrap().read_bytes() == CONTENT
    assert file.media_type == "image/png"


def test_an_attachment_is_added_from_a_path_text_bytes_or_an_open_file(
    gateway: MemoryGateway, tmp_path: Path
) -> None:
    client = gateway.client("phone")
    path = tmp_path / "beach.jpg"
    path.write_bytes(b"a beach")
    from_path = client.attachments.add(path).unwrap()
    from_text = client.attachments.add(str(path)).unwrap()
    from_open = client.attachments.add(io.BytesIO(b"a beach"), media_type="image/jpeg").unwrap()

    assert from_path.media_type == "image/jpeg"
    assert from_path == from_text == from_open
    assert client.attachments.add(b"a beach").unwrap() != from_path
    assert len(client.attachments.pending().unwrap()) == 2


def test_an_empty_attachment_is_uploaded_and_fetched(gateway: MemoryGateway) -> None:
    phone, laptop = gateway.client("phone"), gateway.client("laptop")
    with_photo(phone, b"")
    phone.sync().unwrap()
    phone.attachments.upload().unwrap()
    laptop.sync().unwrap()

    assert laptop.attachments.fetch(*PLACE).unwrap().read_bytes() == b""


@pytest.mark.parametrize(
    ("source", "media_type", "code"),
    [
        ("no/such/file.png", "", "VALIDATION_ERROR"),
        (".", "", "UNAVAILABLE"),
        (b"x", "not a media type", "VALIDATION_ERROR"),
        (io.StringIO("text"), "", "VALIDATION_ERROR"),
    ],
)
def test_an_invalid_attachment_is_refused_and_leaves_no_file(
    gateway: MemoryGateway, tmp_path: Path, source: Any, media_type: str, code: str
) -> None:
    client = gateway.client("phone")

    assert refusal(client.attachments.add(source, media_type=media_type)).code == code
    assert client.attachments.pending().unwrap() == []
    assert files_of("phone", tmp_path) == set()


def test_an_attachment_over_the_size_limit_is_refused(
    gateway: MemoryGateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lakesync.client.storage.attachment_store.ATTACHMENT_BYTES_MAX", 10)
    client = gateway.client("phone")

    assert refusal(client.attachments.add(b"x" * 11)).code == "BODY_TOO_LARGE"
    assert client.attachments.add(b"x" * 10).unwrap().size_bytes == 10
    assert len(files_of("phone", tmp_path)) == 1


@pytest.mark.parametrize("place", [("todos", "t2", "photo"), ("notes", "t1", "photo"),
                                   ("todos", "t1", "title"), ("todos", "t1", "none")])  # fmt: skip
def test_fetching_from_a_cell_without_an_attachment_reference_is_not_found(
    gateway: MemoryGateway, place: tuple[str, str, str]
) -> None:
    client = gateway.client("phone")
    with_photo(client)
    client.update("todos", "t1", {"title": "attachment: none"}).unwrap()

    assert refusal(client.attachments.fetch(*place)).code == "NOT_FOUND"


def test_a_json_cell_may_refer_to_several_attachments(gateway: MemoryGateway) -> None:
    client = gateway.client("phone")
    files = [client.attachments.add(text).unwrap() for text in (b"one", b"two")]
    client.insert("todos", "t1", {"album": {"photos": [*map(str, files)]}}).unwrap()
    fetch = client.attachments.fetch

    assert refusal(fetch("todos", "t1", "album")).code == "VALIDATION_ERROR"
    assert fetch("todos", "t1", "album", files[1]).unwrap().read_bytes() == b"two"


# --- whatever breaks ------------------------------------------------------------------------------


class _Killed(BaseException):
    """The process ends here."""


class Breaking(GatewayTransport):
    """A way to the gateway on which something happens to each request."""

    def __init__(self, gateway: MemoryGateway, faults: Sequence[str]) -> None:
        super().__init__(gateway, {})
        self.coming = list(faults)
        self.sent_bytes = 0

    def _meets(self, when: str) -> None:
        if self.coming and self.coming[0].startswith(when):
            fault = self.coming.pop(0)
            raise _Killed if fault.endswith("killed") else Unreachable("the line broke; try again")

    def _step(self) -> None:
        if self.coming and self.coming[0] == "nothing":
            self.coming.pop(0)

    def ask_upload(
        self, reference: Attachment, parts: Sequence[str], upload: str, epoch: str = ""
    ) -> UploadState:
        """Ask."""
        self._meets("before")
        answer = super().ask_upload(reference, parts, upload, epoch)
        self._meets("after")
        self._step()
        return answer

    def send_bytes(self, request: SignedRequest, content: bytes) -> None:
        """Send."""
        self._meets("before")
        super().send_bytes(request, content)
        self.sent_bytes += len(content)
        self._meets("after")
        self._step()

    def receive_bytes(self, request: SignedRequest, start: int) -> Iterator[bytes]:
        """Receive, and break anywhere."""
        for piece in super().receive_bytes(request, start):
            for place in range(0, len(piece), 16):
                self._meets("before")
                yield piece[place : place + 16]
                self.sent_bytes += len(piece[place : place + 16])
                self._meets("after")
                self._step()


faults = st.lists(
    st.sampled_from(["nothing", "before broke", "after broke", "before killed", "after killed"]),
    max_size=12,
)
FAULTY = settings(
    max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)


@pytest.mark.law("G3", "G6")
@pytest.mark.usefixtures("_small_parts")
@FAULTY
@given(faults, st.integers(0, 200))
def test_an_upload_completes_despite_network_faults_and_killed_processes(
    tmp_path_factory: pytest.TempPathFactory, coming: list[str], size: int
) -> None:
    folder = tmp_path_factory.mktemp("world")
    with MemoryGateway(folder) as gateway:
        path, transport = folder / "phone.db", Breaking(gateway, coming)
        with Client(path, client_id="phone", transport=transport) as client:
            file = with_photo(client, CONTENT[:size])
        for _ in range(30):
            with Client(path, client_id="phone", transport=transport) as client:
                try:
                    result = client.attachments.upload()
                except _Killed:
                    continue
                if isinstance(result, Ok):
                    break
        with Client(path, client_id="phone", transport=transport) as client:
            assert client.attachments.pending().unwrap() == []
            assert client.status.attachments_pending == 0
            assert client.attachments.upload().unwrap().stored == 0
        [(key, stored)] = gateway.attachments().objects.objects.items()
        assert key == f"attachments/test/{file.file_name}"
        assert stored == CONTENT[:size]


@pytest.mark.law("G7")
@FAULTY
@given(faults, st.integers(0, 200))
def test_a_download_completes_despite_network_faults_and_killed_processes(
    tmp_path_factory: pytest.TempPathFactory, coming: list[str], size: int
) -> None:
    folder = tmp_path_factory.mktemp("world")
    with MemoryGateway(folder) as gateway:
        phone = gateway.client("phone")
        with_photo(phone, CONTENT[:size])
        phone.sync().unwrap()
        phone.attachments.upload().unwrap()
        gateway.client("laptop").sync().unwrap()
        gateway.client("laptop").close()
        transport = Breaking(gateway, coming)
        result: Result[Path, LakeSyncError] = Err(Unreachable("not tried"))
        for _ in range(30):
            with Client(folder / "laptop.db", client_id="laptop", transport=transport) as laptop:
                try:
                    result = laptop.attachments.fetch(*PLACE)
                except _Killed:
                    continue
                if isinstance(result, Ok):
                    break
        assert result.unwrap().read_bytes() == CONTENT[:size]
        assert [path.name for path in result.unwrap().parent.iterdir()] == [result.unwrap().name]


@pytest.mark.law("G7")
@pytest.mark.parametrize("wrong", [b"", b"wrong", CONTENT[:-1] + b"?", CONTENT + b"more"])
def test_a_download_with_the_wrong_bytes_is_an_error_and_is_not_stored(
    gateway: MemoryGateway, monkeypatch: pytest.MonkeyPatch, wrong: bytes
) -> None:
    phone, laptop = gateway.client("phone"), gateway.client("laptop")
    with_photo(phone)
    phone.sync().unwrap()
    phone.attachments.upload().unwrap()
    laptop.sync().unwrap()
    with monkeypatch.context() as patch:
        patch.setattr(GatewayTransport, "receive_bytes", lambda *_: iter([wrong]))
        error = refusal(laptop.attachments.fetch(*PLACE))
        assert isinstance(error, DamagedOnTheWay)
    assert laptop.attachments.fetch(*PLACE).unwrap().read_bytes() == CONTENT


@pytest.mark.law("G6")
def test_a_refused_attachment_does_not_block_the_upload_of_others(
    gateway: MemoryGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = gateway.client("phone")
    large, small = (client.attachments.add(content).unwrap() for content in (b"large", b"s"))
    real = GatewayTransport.ask_upload

    def refusing(self: Any, reference: Attachment, *rest: Any) -> UploadState:
        if reference == large:
            raise BodyTooLarge("an attachment has 4 bytes at the most")
        return real(self, reference, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(GatewayTransport, "ask_upload", refusing)
        summary = client.attachments.upload().unwrap()
        assert (summary.stored, summary.refused) == (1, 1)
        assert client.status.attachments_refused == 1
        [entry] = client.attachments.refused().unwrap()
        assert (entry.attachment, entry.code) == (large, "BODY_TOO_LARGE")
        assert entry.status is AttachmentStatus.REFUSED
    client.attachments.retry(large).unwrap()
    assert client.attachments.upload().unwrap().stored == 1
    assert client.attachments.discard(small).unwrap().attachment == small
    assert client.attachments.path(small).unwrap() is None
    assert refusal(client.attachments.retry(small)).code == "NOT_FOUND"


def test_an_attachment_damaged_on_the_device_is_refused_as_corrupt(
    gateway: MemoryGateway,
) -> None:
    client = gateway.client("phone")
    files = [client.attachments.add(content).unwrap() for content in (b"other", b"gone")]
    paths = [client.attachments.path(file).unwrap() for file in files]
    assert paths[0] is not None
    assert paths[1] is not None
    paths[0].write_bytes(b"OTHER")
    paths[1].unlink()

    assert client.attachments.upload().unwrap().refused == 2
    assert {entry.code for entry in client.attachments.refused().unwrap()} == {"CORRUPT"}


# --- beside the syncs -----------------------------------------------------------------------------


def test_the_sync_loop_syncs_while_an_attachment_is_uploading(gateway: MemoryGateway) -> None:
    client = gateway.client("phone")
    sending, go_on = threading.Event(), threading.Event()

    class Slow(GatewayTransport):
        def send_bytes(self, request: SignedRequest, content: bytes) -> None:
            sending.set()
            assert go_on.wait(PATIENCE_S)
            super().send_bytes(request, content)

    with closing(Client(Path(client._path).with_name("slow.db"), client_id="slow",
                        transport=Slow(gateway, {}))) as slow:  # fmt: skip
        with SyncLoop(slow, every_s=600):
            with_photo(slow)
            assert sending.wait(PATIENCE_S)
            slow.update("todos", "t1", {"title": "while it is uploaded"}).unwrap()
            for status in slow.watch_status():
                if not status.pending:
                    break
            client.sync().unwrap()
            assert client.query("SELECT title FROM todos").unwrap() == [
                {"title": "while it is uploaded"}
            ]
            go_on.set()
            for status in slow.watch_status():
                if not status.attachments_pending:
                    break
        assert not any(each.name == "lakesync-attachments" for each in threading.enumerate())
    assert client.attachments.fetch(*PLACE).unwrap().read_bytes() == CONTENT


async def _from_task_to_task(gateway: MemoryGateway) -> bytes:
    phone: AsyncClient = gateway.async_client("phone")
    async with phone:
        file = (await phone.attachments.add(CONTENT)).unwrap()
        (await phone.insert("todos", "t1", {"photo": str(file)})).unwrap()
        assert len((await phone.attachments.pending()).unwrap()) == 1
        (await phone.sync()).unwrap()
        assert (await phone.attachments.upload()).unwrap().stored == 1
        assert (await phone.attachments.refused()).unwrap() == []
        assert (await phone.attachments.evict()).unwrap() == 0
        assert (await phone.attachments.path(file)).unwrap() is None
        content = (await phone.attachments.fetch(*PLACE)).unwrap().read_bytes()
        assert (await phone.attachments.retry(file)).unwrap().attachment == file
        assert (await phone.attachments.discard(file)).unwrap().attachment == file
        return content


def test_an_async_client_uploads_an_attachment_and_another_fetches_it(
    gateway: MemoryGateway,
) -> None:
    import asyncio  # noqa: PLC0415 - here alone

    assert asyncio.run(_from_task_to_task(gateway)) == CONTENT


# --- the disk -------------------------------------------------------------------------------------


@pytest.mark.law("G8")
def test_eviction_removes_least_recently_used_attachments_and_never_waiting_ones(
    gateway: MemoryGateway, tmp_path: Path
) -> None:
    now_ms = [1_700_000_000_000]
    client = gateway.client("phone", wall_clock=lambda: now_ms[0])
    files = []
    for number in range(4):
        now_ms[0] += 1_000
        files.append(with_photo(client, bytes([number]) * 10, f"t{number}"))
    client.sync().unwrap()
    client.attachments.upload().unwrap()
    waiting = client.attachments.add(b"waits").unwrap()
    now_ms[0] += 1_000
    client.attachments.path(files[0]).unwrap()

    assert client.attachments.evict(30).unwrap() == 25
    here = [file for file in files if client.attachments.path(file).unwrap()]
    assert here == [files[0], files[3]]
    assert client.attachments.evict().unwrap() == 5
    assert files_of("phone", tmp_path) == {waiting.file_name}
    assert client.attachments.fetch("todos", "t1", "photo").unwrap().read_bytes() == b"\1" * 10


@pytest.mark.law("G8")
def test_a_wipe_is_refused_while_an_attachment_waits_and_then_removes_all_files(
    gateway: MemoryGateway, tmp_path: Path
) -> None:
    client = gateway.client("phone")
    with_photo(client)
    client.sync().unwrap()
    error = refusal(client.wipe())
    assert error.code == "CONFLICT"
    assert "1 attachment is" in error.message
    client.attachments.upload().unwrap()
    client.wipe().unwrap()

    assert [path.name for path in tmp_path.iterdir()] == []


def test_an_encrypted_client_refuses_attachments_and_stores_none(
    gateway: MemoryGateway, tmp_path: Path
) -> None:
    client = gateway.client("phone", key="correct horse battery staple")

    assert "encrypted" in refusal(client.attachments.add(b"secret")).message
    assert refusal(client.attachments.fetch(*PLACE)).code == "VALIDATION_ERROR"
    assert files_of("phone", tmp_path) == set()


@pytest.mark.law("G6")
@pytest.mark.usefixtures("_small_parts")
def test_an_attachment_waiting_beside_a_damaged_file_is_uploaded_after_salvage(
    gateway: MemoryGateway, tmp_path: Path
) -> None:
    client = gateway.client("phone")
    file = with_photo(client)
    client.close()
    salvage(tmp_path / "phone.db").unwrap()
    with closing(gateway.client("phone")) as client:
        assert client.attachments.upload().unwrap().stored == 1

    assert gateway.attachments().objects.objects[f"attachments/test/{file.file_name}"] == CONTENT


def test_eviction_removes_unknown_files_and_keeps_recent_partial_ones(
    gateway: MemoryGateway, tmp_path: Path
) -> None:
    client = gateway.client("phone")
    file = with_photo(client)
    folder = tmp_path / "phone.db-attachments"
    (folder / "unknown").write_bytes(b"x")
    (folder / "young.part").write_bytes(b"x")
    client.attachments.evict().unwrap()

    assert files_of("phone", tmp_path) == {file.file_name, "young.part"}


def test_a_transport_without_attachments_reports_method_not_allowed(
    gateway: MemoryGateway, tmp_path: Path
) -> None:
    from lakesync.client import MemoryTransport  # noqa: PLC0415 - here alone

    transport = MemoryTransport("test", gateway, gateway)
    with Client(tmp_path / "other.db", client_id="other", transport=transport) as client:
        client.attachments.add(b"x").unwrap()
        error = refusal(client.attachments.upload())
        assert error.code == "METHOD_NOT_ALLOWED"
        assert isinstance(client.status.last_error, LakeSyncError)
        assert client.status.attachments_pending == 1
        with SyncLoop(client, every_s=600):
            client.insert("todos", "t1", {"a": 1}).unwrap()
