"""What every store of audit records promises: latest first, by filter and page, ended once."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from lakesync.buffer.admin_stores import ItemAudit
from lakesync.ports import AuditOutcome, AuditQuery, AuditRecord
from tests.support.stores import NOT_MODELLED

if TYPE_CHECKING:
    from lakesync.buffer.items import ItemStore
    from lakesync.ports import AuditStore

KEEP_S = 2_000_000_000
pytestmark = pytest.mark.parametrize("store", NOT_MODELLED, indirect=True)


@pytest.fixture
def audit(item_store: ItemStore) -> ItemAudit:
    return ItemAudit(item_store)


def record(
    gateway: str, at_ms: int, user: str = "ann|\U0001f600", operation: str = "flush"
) -> AuditRecord:
    name = f"{at_ms:012x}-{at_ms:032x}"
    return AuditRecord(gateway, name, at_ms, user, "admin", operation, "x", "r1", '{"a":1}')


def written(audit: AuditStore, gateway: str, count: int) -> list[AuditRecord]:
    """Write records by two users in turn; returns them, the latest first."""
    records = [record(gateway, 1_000 + n, "ann" if n % 2 else "bob") for n in range(count)]
    for each in records:
        audit.begin(each, KEEP_S)
    return records[::-1]


def paged(audit: AuditStore, gateway: str, query: AuditQuery) -> list[list[AuditRecord]]:
    """Return all pages."""
    pages = []
    while True:
        page, below = audit.records(gateway, query)
        pages.append(page)
        if not below:
            return pages
        query = replace(query, below=below)


@pytest.mark.law("J1")
def test_a_record_is_begun_and_then_ended_once(audit: AuditStore, gateway: str) -> None:
    begun = record(gateway, 5)
    audit.begin(begun, KEEP_S)
    audit.begin(begun, KEEP_S)
    assert audit.records(gateway, AuditQuery()) == ([begun], "")
    ended = replace(begun, outcome=AuditOutcome.FAILED, after="null", code="NO", ended_ms=9)
    audit.end(ended)
    audit.end(replace(ended, outcome=AuditOutcome.DONE, code="", ended_ms=10))
    audit.end(replace(ended, id=record(gateway, 6).id))
    assert audit.records(gateway, AuditQuery()) == ([ended], "")


@pytest.mark.law("J3")
def test_pages_hold_each_record_once_the_latest_first(audit: AuditStore, gateway: str) -> None:
    records = written(audit, gateway, 7)

    pages = paged(audit, gateway, AuditQuery(limit=3))
    assert [each for page in pages for each in page] == records
    assert [len(page) for page in pages] == [3, 3, 1]
    assert audit.records(f"{gateway}x", AuditQuery()) == ([], "")


@pytest.mark.law("J3")
def test_filters_hold_for_every_page(audit: AuditStore, gateway: str) -> None:
    records = written(audit, gateway, 9)
    other = record(gateway, 2_000, "ann", "saveSyncRules")
    audit.begin(other, KEEP_S)

    by_ann = paged(audit, gateway, AuditQuery(user="ann", limit=2))
    wanted = [other] + [each for each in records if each.user == "ann"]
    assert [each for page in by_ann for each in page] == wanted
    assert audit.records(gateway, AuditQuery(operation="saveSyncRules")) == ([other], "")
    assert audit.records(gateway, AuditQuery(operation="flush", user="nobody")) == ([], "")
    between = audit.records(gateway, AuditQuery(since_ms=1_002, until_ms=1_005))[0]
    assert [each.at_ms for each in between] == [1_004, 1_003, 1_002]
