"""`lakesync gateways erase` against a real gateway: no value of a row is left in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from lakesync.buffer.admin_stores import ItemConnectors
from lakesync.buffer.memory_items import MemoryItemStore
from lakesync.cli import erasure, session
from lakesync.cli.commands import erase, gateways
from lakesync.connectors import Storage
from lakesync.connectors.state import DeadLetters
from lakesync.core.deliveries import is_erasure, read_erasure
from lakesync.errors import ValidationFailed
from lakesync.gateway.admin_changes import Audit, Who
from lakesync.ports import AuditQuery
from tests.cli.test_declaring import RULES, gateway, write
from tests.support.builders import insert
from tests.support.command_lines import run
from tests.support.lake import Messages
from tests.support.lake_tables import in_folder
from tests.support.local_gateway import GATEWAY

if TYPE_CHECKING:
    from tests.support.local_gateway import LocalGateway

__all__ = ["gateway"]  # the fixture

WORDS = ("gateways", "erase", GATEWAY, "flights")
ALONE = (*WORDS, "--yes", "--no-lake")


@pytest.fixture
def taken() -> list[tuple[str, bytes]]:
    """Return the claims that were taken while the command waited."""
    return []


@pytest.fixture
def connectors() -> ItemConnectors:
    """Return the connectors."""
    return ItemConnectors(MemoryItemStore())


@pytest.fixture
def slept(
    gateway: LocalGateway,
    taken: list[tuple[str, bytes]],
    connectors: ItemConnectors,
    monkeypatch: pytest.MonkeyPatch,
) -> list[float]:
    """Return how long the command waited, while the gateway's time passes."""
    seconds: list[float] = []

    def sleep(wait_s: float) -> None:
        seconds.append(wait_s)
        gateway.ahead_ms += int(wait_s * 1000)
        for prefix in ("claims/", "deliveries/"):
            for key in gateway.objects.list_objects(prefix):
                taken.append((key, gateway.objects.get_object(key)))
                gateway.objects.delete_object(key)  # delivered meanwhile

    def now_ms() -> int:
        return real_now_ms() + gateway.ahead_ms

    real_now_ms = gateways.now_ms
    monkeypatch.setattr("lakesync.cli.commands.erase.time.sleep", sleep)
    monkeypatch.setattr(erase, "now_ms", now_ms)
    recording = Audit(gateway.audit, wall_clock=now_ms, token=lambda: uuid4().hex)
    monkeypatch.setattr(
        session, "audit_of", lambda _: (recording, Who("arn:aws:iam::1:ann", "iam"))
    )
    for module in (erase, gateways):
        monkeypatch.setattr(module, "stores", lambda _: (gateway.buffer, gateway.objects))
    monkeypatch.setattr(erase, "outlets", lambda _: (connectors, Messages()))
    return seconds


def test_erase_without_yes_erases_nothing(slept: list[float]) -> None:
    refused = run(*WORDS, "UA1")

    assert refused.exit_code == 2
    assert "pass --yes" in refused.stderr
    assert run("gateways", "find-row", GATEWAY, "flights", "UA1", "--no-lake").exit_code == 1


@pytest.mark.law("E5", "J2")
def test_erase_deletes_rows_and_leaves_no_copy(slept: list[float], gateway: LocalGateway) -> None:
    done = run(*ALONE, "UA1", "UA2", "nowhere", "--json")
    report = json.loads(done.stdout)

    assert done.exit_code == 0, done.stderr
    assert report["left"] == {
        "row": 0, "log": 0, "checkpoints": 0, "batches": 0, "connectors": 0, "attachments": 0,
    }  # fmt: skip
    assert report["attachments"] == {"removed": [], "shared": []}
    assert report["destinations"] == []
    assert 50 < sum(slept) < 70
    assert "not erased: the lake's history" in done.stderr
    assert run("gateways", "find-row", GATEWAY, "flights", "UA3", "--no-lake").exit_code == 1
    (record,), _ = gateway.audit.records(GATEWAY, AuditQuery(operation="eraseRows"))
    assert (record.user, record.outcome) == ("arn:aws:iam::1:ann", "done")
    assert record.target == "flights: 3 rows"
    assert (json.loads(record.before), json.loads(record.after)) == ({"rows": 2}, {"rows": 0})
    assert "UA1" not in str(record)
    again = run(*ALONE, "UA1")
    assert again.exit_code == 0
    assert "1 row erased" in again.stdout


def test_erase_is_refused_when_sync_rules_prevent_deleting_the_row(slept: list[float]) -> None:
    write("rules.json", RULES)
    assert run("rules", "put", "rules.json").exit_code == 0

    refused = run(*WORDS, "UA1", "--yes")

    assert refused.exit_code == 2
    assert "could not be deleted" in refused.stderr
    assert "LAKESYNC_TOKEN" in refused.stderr


@pytest.mark.law("E5")
def test_erase_names_the_pending_step_at_its_timeout(
    slept: list[float], gateway: LocalGateway
) -> None:
    late = run(*ALONE, "UA1", "--timeout", "1")

    assert late.exit_code == 3
    assert "still waits for a minute to pass" in late.stderr
    (record,), _ = gateway.audit.records(GATEWAY, AuditQuery(operation="eraseRows"))
    assert (record.outcome, record.code) == ("failed", "UNAVAILABLE")
    assert "the same command goes on" in late.stderr
    assert run(*ALONE, "UA1").exit_code == 0


@pytest.mark.law("E9", "E10")
def test_erase_removes_rows_from_destinations_and_connector_storage(
    slept: list[float],
    gateway: LocalGateway,
    taken: list[tuple[str, bytes]],
    connectors: ItemConnectors,
) -> None:
    write("warehouse.json", {"kind": "postgres", "secret": "warehouse", "tables": ["flights"]})
    assert run("destinations", "add", "warehouse", "warehouse.json").exit_code == 0
    connectors.add(GATEWAY, "shop", b"{}", 0)
    storage = Storage(gateway.objects, GATEWAY, "shop")
    delta = insert("UA1", at=1, table="flights", carrier=7)
    DeadLetters(storage).add("flights", "UA1", ValidationFailed("no carrier"), delta)

    done = run(*ALONE, "UA1", "UA2", "--json")
    report = json.loads(done.stdout)

    assert done.exit_code == 0, done.stderr
    assert report["destinations"] == ["warehouse"]
    assert "erased by the destinations warehouse" in done.stderr
    [body] = [body for key, body in taken if is_erasure(key)]
    assert read_erasure(body) == ("UA1", "UA2")
    assert is_erasure(taken[-1][0]), "behind the batches"
    assert storage.paths() == []
    assert report["left"]["connectors"] == 0


@pytest.mark.law("E9", "E10")
def test_erase_names_the_connectors_whose_polls_delay_it(
    slept: list[float], connectors: ItemConnectors, gateway: LocalGateway
) -> None:
    assert run(*ALONE, "UA1").exit_code == 0
    connectors.add(GATEWAY, "shop", b"{}", 0)
    assert connectors.lease(GATEWAY, "shop", 0, 1 << 62)
    Storage(gateway.objects, GATEWAY, "shop").write({"page": []}, "listing", "flights")
    late = run(*ALONE, "UA1", "--timeout", "1")

    assert late.exit_code == 3
    assert "still waits for the connectors shop to end their polls" in late.stderr


@pytest.mark.law("E9")
def test_erase_keeps_batches_of_claims_set_aside(slept: list[float], gateway: LocalGateway) -> None:
    gateway.objects.put_object(f"claims-failed/{GATEWAY}/flights/1-2.json", b"{}", "a/b")

    refused = run(*ALONE, "UA1")

    assert refused.exit_code == 1
    assert "1 claim of flights could not succeed" in refused.stderr
    assert gateway.objects.list_objects(f"staging/{GATEWAY}/flights/") != []
    gateway.objects.delete_object(f"claims-failed/{GATEWAY}/flights/1-2.json")
    assert run(*ALONE, "UA1").exit_code == 0


class Job:
    """The stack's job, as the command sees it: it reads the request, and reports."""

    def __init__(self, gateway: LocalGateway) -> None:
        self.left = 0
        self.requests: list[tuple[str, Any, float]] = []
        self._objects = gateway.objects

    def __call__(self, _: Any, only: str, timeout_s: float, given: dict[str, str]) -> Any:
        request = self._objects.get_object(given["--erase_key"])
        self.requests.append((only, json.loads(request), timeout_s))
        lake_table = {"table": "glue.one.flights__changes", "kind": "changes", "removed": 2}
        keeps = {"keptBy": ["audit"]} if self.left else {"keptBy": []}
        return {
            "tables": [{**lake_table, "files": 3, "left": self.left, **keeps}],
            "searched": [], "versionsRemoved": 7, "versionsLeft": 0,
            "againMs": 1_800_000_000_000 if self.left else 0,
        }  # fmt: skip


@pytest.fixture
def job(gateway: LocalGateway, monkeypatch: pytest.MonkeyPatch) -> Job:
    made = Job(gateway)
    in_folder(Path("lake").absolute(), gateway, monkeypatch)  # nothing is in it
    monkeypatch.setattr(erasure, "run_job", made)
    return made


@pytest.mark.law("E6", "E8")
def test_erase_runs_the_lake_job_once_and_reports_what_the_job_removed(
    slept: list[float], job: Job
) -> None:
    done = run(*WORDS, "UA1", "UA2", "--yes", "--json")
    report = json.loads(done.stdout)

    assert done.exit_code == 0, done.stderr
    [(only, request, timeout_s)] = job.requests
    assert (only, request) == (f"{GATEWAY}/flights", {"rows": ["UA1", "UA2"]})
    assert 1 <= timeout_s <= 3_600
    assert set(report["left"].values()) == {0}
    assert set(report["left"]) >= {"log", "lake", "old versions"}
    assert "2 changes removed, 3 files looked into; 7 old versions removed" in done.stderr
    assert "not erased: backups" in done.stderr


@pytest.mark.law("E8")
def test_erase_reports_copies_left_in_the_lake_with_reason_and_time(
    slept: list[float], job: Job
) -> None:
    job.left = 1

    late = run(*WORDS, "UA1", "--yes")

    assert late.exit_code == 1
    assert "lake 1" in late.stdout
    assert "audit may keep earlier files: drop it, and repeat this" in late.stderr
    assert "from 2027-01-15T08:00Z on the same command removes them" in late.stderr


def test_erasure_from_the_lake_remarks_that_the_table_does_not_exist() -> None:
    nothing = {"tables": [], "versionsRemoved": 0, "versionsLeft": 0, "againMs": 0}

    assert "no table of that name" in list(erasure.remarks(nothing))[1]
