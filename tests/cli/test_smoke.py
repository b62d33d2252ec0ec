"""The smoke test against a real gateway: each step is told, and cleaned up whatever fails."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from lakesync.cli import smoke
from lakesync.cli.smoke import RULES, SCRATCH, Job
from lakesync.errors import Unavailable
from lakesync.wire.records import decode_row_state
from tests.support.command_lines import run
from tests.support.local_gateway import GATEWAY, LocalGateway, serve_gateway

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from typer.testing import Result

STEPS = ["rules", "push", "pull", "edit", "flush", "clean up"]

pytestmark = pytest.mark.usefixtures("stack_file")


@pytest.fixture
def gateway() -> Iterator[LocalGateway]:
    """One for each test, which counts what is on it."""
    with serve_gateway() as served:
        yield served


def smoked(*words: str) -> Result:
    return run("smoke", *words)


def steps(done: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in done.stdout.splitlines()]


def rows(gateway: LocalGateway, name: str = "") -> int:
    """Count the rows that are there, of a gateway or of all."""
    names = [name] if name else gateway.buffer.gateways()
    scanned = [gateway.buffer.scan_rows(each, smoke.TABLE, "", 100).rows for each in names]
    return sum(bool(decode_row_state(row.state).alive) for some in scanned for _, row in some)


def test_smoke_reports_every_step_and_leaves_no_data(gateway: LocalGateway) -> None:
    for _ in range(2):
        done = smoked("--json")
        assert done.exit_code == 0, done.output
        assert [line["step"] for line in steps(done)] == STEPS
        assert all(line["well"] for line in steps(done))
        assert steps(done)[-1]["what"].startswith(f"the gateway {SCRATCH}-")
    assert gateway.buffer.gateways() == []
    assert gateway.objects.bodies == {}


def test_a_named_scratch_gateway_is_kept_without_rows(gateway: LocalGateway) -> None:
    for _ in range(2):
        assert smoked("--scratch", "trial").exit_code == 0
    assert gateway.buffer.gateways() == ["trial"]
    assert rows(gateway, "trial") == 0


def test_smoke_sends_no_request_to_the_gateway_in_use(gateway: LocalGateway) -> None:
    assert smoked("--gateway", GATEWAY, "--scratch", "smoke-2").exit_code == 0
    assert gateway.requests
    assert not [line for line in gateway.requests if GATEWAY in line.split("/")]
    assert gateway.buffer.gateways() == ["smoke-2"]


def test_smoke_refuses_a_scratch_gateway_with_sync_rules(gateway: LocalGateway) -> None:
    assert smoked().exit_code == 0
    theirs = {"version": 1, "buckets": [{"name": "theirs", "tables": ["smoke"], "filters": []}]}
    rules = json.dumps(theirs)
    put = run("rules", "put", "-", "--gateway", "smoke-3", text=rules)
    assert put.exit_code == 0, put.output
    before = len(gateway.requests)

    done = smoked("--scratch", "smoke-3", "--json")

    assert done.exit_code == 1
    assert [(line["step"], line["well"]) for line in steps(done)] == [
        ("rules", False),
        ("clean up", True),
    ]
    assert "is in use: it has rules of its own" in steps(done)[0]["what"]
    assert [line.split()[0] for line in gateway.requests[before:]] == ["GET"]


def test_smoke_uses_a_given_token(gateway: LocalGateway) -> None:
    token = gateway.token("ann@example.com", gateway=SCRATCH, role="admin")
    assert smoked("--token", token).exit_code == 0
    assert smoked("--scratch", SCRATCH).exit_code == 0  # another user, with clients of its own
    other = gateway.token("ann@example.com", gateway="another", role="admin")
    done = smoked("--token", other)
    assert done.exit_code == 1
    assert done.stdout.startswith("FAILED rules: ")


def test_smoke_fails_when_sync_rules_hide_nothing(
    gateway: LocalGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = RULES["buckets"][0] | {"filters": []}
    monkeypatch.setitem(RULES, "buckets", [bucket])
    done = smoked("--json")
    assert done.exit_code == 1
    assert [line["step"] for line in steps(done)] == ["rules", "push", "pull", "clean up"]
    assert "and not the one that the rules show" in steps(done)[2]["what"]
    assert rows(gateway) == 0


@pytest.mark.parametrize("step", ["push", "pull", "edit", "flush"])
def test_smoke_cleans_up_and_fails_whichever_step_fails(
    gateway: LocalGateway, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    original = getattr(Job, step)

    def failing(job: Job) -> str:
        original(job)
        raise Unavailable("the gateway is away")

    monkeypatch.setattr(Job, step, failing)
    done = smoked("--json")

    assert done.exit_code == 1
    *_, last, clean = steps(done)
    assert (last["step"], last["well"], last["what"]) == (step, False, "the gateway is away")
    assert (clean["step"], clean["well"]) == ("clean up", True)
    assert gateway.buffer.gateways() == []


def test_smoke_fails_when_clean_up_fails(
    gateway: LocalGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(_: Job) -> str:
        raise Unavailable("the gateway is away")

    monkeypatch.setattr(Job, "delete", away)
    done = smoked()
    assert done.exit_code == 1
    assert "FAILED clean up: the gateway is away" in done.stdout
    assert rows(gateway) == 2


def test_smoke_reports_an_unreachable_gateway(stack_file: Path) -> None:
    stack = json.loads(stack_file.read_text("utf-8")) | {"http": "http://127.0.0.1:9"}
    stack_file.write_text(json.dumps(stack))
    done = smoked()
    assert done.exit_code == 1
    assert done.stdout.startswith("FAILED rules: the gateway did not answer")
