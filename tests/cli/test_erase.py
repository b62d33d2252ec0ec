"""`lakesync gateways erase` against a real gateway: no value of a row is left in it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from lakesync.cli.commands import erase, gateways
from tests.cli.test_declaring import RULES, gateway, run, write
from tests.support.local_gateway import GATEWAY

if TYPE_CHECKING:
    from tests.support.local_gateway import LocalGateway

__all__ = ["gateway"]  # the fixture

WORDS = ("gateways", "erase", GATEWAY, "flights")


@pytest.fixture
def slept(gateway: LocalGateway, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Give how long the command waited, while the gateway's time passes."""
    seconds: list[float] = []

    def sleep(wait_s: float) -> None:
        seconds.append(wait_s)
        gateway.ahead_ms += int(wait_s * 1000)
        for key in gateway.objects.list_objects("claims/"):
            gateway.objects.delete_object(key)  # delivered meanwhile

    def now_ms() -> int:
        return real_now_ms() + gateway.ahead_ms

    real_now_ms = gateways.now_ms
    monkeypatch.setattr("lakesync.cli.commands.erase.time.sleep", sleep)
    monkeypatch.setattr(erase, "now_ms", now_ms)
    for module in (erase, gateways):
        monkeypatch.setattr(module, "stores", lambda _: (gateway.buffer, gateway.objects))
    return seconds


def test_nothing_is_erased_without_a_yes(slept: list[float]) -> None:
    refused = run(*WORDS, "UA1")

    assert refused.exit_code == 2
    assert "pass --yes" in refused.stderr
    assert run("gateways", "find-row", GATEWAY, "flights", "UA1", "--no-lake").exit_code == 1


@pytest.mark.law("E5")
def test_a_row_is_deleted_and_nothing_of_it_is_left(
    slept: list[float], gateway: LocalGateway
) -> None:
    done = run(*WORDS, "UA1", "UA2", "nowhere", "--yes", "--json")
    report = json.loads(done.stdout)

    assert done.exit_code == 0, done.stderr
    assert report["left"] == {"row": 0, "log": 0, "checkpoints": 0, "batches": 0}
    assert 50 < sum(slept) < 70
    assert "not erased: the lake's history" in done.stderr
    assert run("gateways", "find-row", GATEWAY, "flights", "UA3", "--no-lake").exit_code == 1
    again = run(*WORDS, "UA1", "--yes")
    assert again.exit_code == 0
    assert "1 row erased" in again.stdout


def test_rows_that_the_rules_do_not_let_go_are_said_to_be_there(slept: list[float]) -> None:
    write("rules.json", RULES)
    assert run("rules", "put", "rules.json").exit_code == 0

    refused = run(*WORDS, "UA1", "--yes")

    assert refused.exit_code == 2
    assert "could not be deleted" in refused.stderr
    assert "LAKESYNC_TOKEN" in refused.stderr


@pytest.mark.law("E5")
def test_it_says_what_it_waits_for_when_its_time_is_up(slept: list[float]) -> None:
    late = run(*WORDS, "UA1", "--yes", "--timeout", "1")

    assert late.exit_code == 3
    assert "still waits for a minute to pass" in late.stderr
    assert "the same command goes on" in late.stderr
    assert run(*WORDS, "UA1", "--yes").exit_code == 0
