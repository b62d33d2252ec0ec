"""Attachments on the deployed stack: signed by the function's own role, sent to S3 and fetched."""

from __future__ import annotations

import random
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from lakesync.client import Client, HttpTransport
from lakesync.core.attachments import PART_BYTES
from lakesync.errors import NotFound, NotYetUploaded, Unreachable
from lakesync.result import Err
from tests.stack.test_rules import RULES, SCHEMA, administer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from lakesync.core.attachments import Attachment
    from tests.support.deployed import Tenant

PLACE = ("todos", "t1", "photo")
PHOTO = {"name": "photo", "type": "string"}
REQUESTS_UNCOUNTED_MAX = 40
"""Of one process, until it asks what a gateway may: a thirty-second of the stack's quota."""


@pytest.fixture
def governed(tenant: Tenant) -> Tenant:
    """A tenant each of whose rows is of a team, which alone sees it."""
    administer(tenant, "schema", SCHEMA | {"columns": [*SCHEMA["columns"], PHOTO]})
    administer(tenant, "sync-rules", RULES)
    return tenant


class Line(httpx.BaseTransport):
    """A network that takes so many requests to the store, and then no more of any kind."""

    def __init__(self, takes: int) -> None:
        self._inner = httpx.HTTPTransport()
        self._takes = takes
        self.sent_bytes = 0

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        if self._takes <= 0:
            raise httpx.ConnectError("the line is gone", request=request)
        if request.method == "PUT":
            self._takes -= 1
            self.sent_bytes += len(request.content)
        return self._inner.handle_request(request)

    def close(self) -> None:
        self._inner.close()


@contextmanager
def opened(tenant: Tenant, name: str, team: str, folder: Path, line: Line) -> Iterator[Client]:
    with (
        HttpTransport(
            tenant.stack.http,
            tenant.gateway,
            token=lambda: tenant.token(name, teams=[team]),
            http=line,
        ) as transport,
        Client(folder / f"{name}.db", client_id=name, transport=transport) as client,
    ):
        yield client


def download(tenant: Tenant, file: Attachment, **claims: Any) -> object:
    """Ask for a file as somebody with these claims."""
    with HttpTransport(
        tenant.stack.http, tenant.gateway, token=tenant.token("other", **claims)
    ) as transport:
        return transport.ask_download(*PLACE, file)


@pytest.mark.law("G3", "G4", "G6", "G7")
def test_attachment_added_offline_is_readable_only_by_users_who_see_its_row(
    governed: Tenant, tmp_path: Path
) -> None:
    tenant, size = governed, 2 * PART_BYTES + 1_000
    content = random.Random(size).randbytes(size)
    with opened(tenant, "ann", "x", tmp_path, offline := Line(0)) as ann:
        file = ann.attachments.add(content, media_type="image/png").unwrap()
        ann.insert("todos", "t1", {"team": "x", "photo": str(file)}).unwrap()
        assert isinstance(ann.sync(), Err)
    # There is a line for one of three parts, and the app is closed behind it.
    with opened(tenant, "ann", "x", tmp_path, first := Line(1)) as ann:
        ann.sync().unwrap()
        with pytest.raises(Unreachable):
            ann.attachments.upload().unwrap()
    with pytest.raises(NotYetUploaded):
        download(tenant, file, teams=["x"])

    with opened(tenant, "ann", "x", tmp_path, second := Line(100)) as ann:
        assert ann.attachments.upload().unwrap().stored == 1

    assert (offline.sent_bytes, first.sent_bytes) == (0, PART_BYTES)
    assert second.sent_bytes == size - PART_BYTES
    with opened(tenant, "bob", "x", tmp_path, Line(100)) as bob:
        bob.sync().unwrap()
        assert bob.attachments.fetch(*PLACE).unwrap().read_bytes() == content
    with pytest.raises(NotFound) as hidden:
        download(tenant, file, teams=["y"])
    assert not isinstance(hidden.value, NotYetUploaded)


@pytest.mark.law("Q1")
def test_attachment_requests_count_against_the_quota_of_the_gateway(
    tenant: Tenant, lakesync: Callable[..., Any]
) -> None:
    lakesync("quota", "set", "--pushes", "1", "--gateway", tenant.gateway)
    path, token = f"/sync/{tenant.gateway}/attachments", tenant.token("ann")
    statuses = {
        tenant.call("POST", path, token=token, json={"reference": "none"}).status_code
        for _ in range(REQUESTS_UNCOUNTED_MAX + 2)
    }
    assert statuses == {400, 429}


def sizes(tenant: Tenant) -> list[int]:
    """Return the lengths of the gateway's files."""
    listed = tenant.aws.client("s3").list_objects_v2(
        Bucket=tenant.aws.output("LakeBucket"), Prefix=f"attachments/{tenant.gateway}/"
    )
    return [each["Size"] for each in listed.get("Contents", [])]


@pytest.mark.law("E3", "G4")
def test_unreferenced_attachment_is_not_found_and_gateway_deletion_removes_it(
    governed: Tenant, tmp_path: Path
) -> None:
    tenant = governed
    with opened(tenant, "ann", "x", tmp_path, Line(100)) as ann:
        file = ann.attachments.add(b"hello", media_type="text/plain").unwrap()
        ann.insert("todos", "t1", {"team": "x", "photo": str(file)}).unwrap()
        ann.sync().unwrap()
        ann.attachments.upload().unwrap()
        assert download(tenant, file, teams=["x"])

        ann.update("todos", "t1", {"photo": "none"}).unwrap()
        ann.sync().unwrap()
        with pytest.raises(NotFound):
            download(tenant, file, teams=["x"])

    assert sizes(tenant) == [len(b"hello")]
    path, admin = f"/admin/gateways/{tenant.gateway}", tenant.token("ops", role="admin")
    while not (deletion := tenant.call("DELETE", path, token=admin).json())["finished"]:
        pass
    assert deletion["left"]["attachments"] == 0
    assert sizes(tenant) == []
