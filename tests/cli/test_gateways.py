"""`lakesync gateways` against a real gateway: it is deleted, and says what is left."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from lakesync.maintenance.erasure import QUIET_MS
from tests.cli.test_declaring import gateway, run
from tests.support.local_gateway import GATEWAY

if TYPE_CHECKING:
    from tests.support.local_gateway import LocalGateway

__all__ = ["gateway"]  # the fixture

ROW = json.dumps(
    {"op": "UPDATE", "table": "flights", "rowId": "UA1", "columns": {"carrier": "UA", "delay": 9}}
)


def test_gateways_delete_without_yes_deletes_nothing(gateway: LocalGateway) -> None:
    refused = run("gateways", "delete", GATEWAY)

    assert refused.exit_code == 2
    assert "pass --yes" in refused.stderr
    assert run("push", "-", text=ROW).exit_code == 0


@pytest.mark.law("E1", "E3")
def test_a_deleted_gateway_keeps_no_data_and_refuses_all_requests(gateway: LocalGateway) -> None:
    run("push", "-", text=ROW)
    run("flush")
    done = run("gateways", "delete", GATEWAY, "--yes", "--json")
    report = json.loads(done.stdout)

    assert done.exit_code == 0
    assert (report["gone"], report["proved"]) == (True, False)
    assert set(report["left"].values()) == {0}
    assert "is the proof from" in done.stderr
    assert not gateway.objects.bodies
    for words in (("push", "-"), ("pull",), ("schema", "list")):
        refused = run(*words, text=ROW)
        assert refused.exit_code == 1
        assert "deleted for good" in refused.stderr
    again = json.loads(run("gateways", "delete", GATEWAY, "--yes", "--json").stdout)
    assert set(again["left"].values()) == {0}


@pytest.mark.law("E3")
def test_deletion_with_wait_is_proved_after_the_quiet_period(
    gateway: LocalGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        gateway.ahead_ms += int(seconds * 1000)

    monkeypatch.setattr("lakesync.cli.commands.gateways.time.sleep", sleep)
    run("push", "-", text=ROW)
    done = run("gateways", "delete", GATEWAY, "--yes", "--wait", "--json")

    assert json.loads(done.stdout)["proved"] is True
    assert done.stderr == ""
    assert QUIET_MS / 1000 - 60 < slept[0] <= QUIET_MS / 1000 + 2


def test_deleting_an_unknown_gateway_is_refused(gateway: LocalGateway) -> None:
    refused = run("gateways", "delete", "nowhere", "--yes")

    assert refused.exit_code == 1
    assert "there is no gateway" in refused.stderr
