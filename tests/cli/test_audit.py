"""`lakesync audit` against a real gateway."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from lakesync.cli.commands import access
from tests.cli.test_declaring import gateway, run
from tests.support.local_gateway import GATEWAY

if TYPE_CHECKING:
    from tests.support.local_gateway import LocalGateway

__all__ = ["gateway"]  # the fixture


@pytest.mark.law("J3")
def test_audit_records_are_filtered_by_user_operation_and_time(
    gateway: LocalGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access, "PAGE_RECORDS", 2)
    for name in ("p1", "p2", "p3"):
        run("access", "revoke", "client", name, "--client", "ann")

    listed = run("audit", GATEWAY, "--who", "ann", "--json").stdout.splitlines()
    assert [json.loads(line)["target"] for line in listed] == [
        "client p3", "client p2", "client p1"
    ]  # fmt: skip
    shown = run("audit", "--operation", "registerSchema", "--since", "1h").stdout
    assert "flights" in shown
    assert "done" in shown
    assert "client p1" not in shown
    assert len(run("audit", "--limit", "3", "--json").stdout.splitlines()) == 3
    assert "no change matches" in run("audit", "--until", "2020-01-01").stdout


def test_an_operator_reads_audit_records_and_may_not_revoke(
    gateway: LocalGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKESYNC_TOKEN", run("token", "--role", "operator").stdout.strip())

    assert "registerSchema" in run("audit").stdout
    refused = run("access", "revoke", "client", "p1")
    assert refused.exit_code != 0
    assert "whose role is admin" in refused.stderr


def test_an_invalid_since_time_is_wrong_usage(gateway: LocalGateway) -> None:
    wrong = run("audit", "--since", "soon")

    assert wrong.exit_code == 2
    assert "--since 'soon' is not a time" in wrong.stderr
