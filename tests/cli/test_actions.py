"""`lakesync actions` against a real gateway."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from lakesync.cli.commands import connectors
from lakesync.errors import ActionFailed, AdapterUnreachable
from tests.cli.test_declaring import gateway, run
from tests.support.acting import use_memory_outside

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.acting import MemoryOutside
    from tests.support.local_gateway import LocalGateway

__all__ = ["gateway"]  # the fixture


@pytest.fixture
def outside(gateway: LocalGateway, monkeypatch: pytest.MonkeyPatch) -> MemoryOutside:
    """What action handlers of the type ``memory`` reach."""
    monkeypatch.setattr(connectors, "_PAUSE_S", 0.0)
    return use_memory_outside(monkeypatch)


@pytest.fixture
def file(outside: MemoryOutside, tmp_path: Path) -> str:
    """A file that registers an action handler."""
    body = {"type": "memory", "name": "mail", "configuration": {"token": "hush"}}
    (tmp_path / "mail.json").write_text(json.dumps(body))
    return str(tmp_path / "mail.json")


@pytest.mark.law("X6")
def test_an_action_handler_is_added_listed_run_and_removed(
    outside: MemoryOutside, file: str
) -> None:
    assert "registered: mail, which can send" in run("actions", "add", file).stdout
    again = run("actions", "add", file)
    assert (again.exit_code, "already" in again.stderr) == (1, True)
    assert "nobody" in run("actions", "list").stdout
    (listed,) = run("actions", "list", "--json").stdout.splitlines()
    assert json.loads(listed)["actions"] == ["send"]
    assert "hush" not in listed

    done = run("actions", "run", "mail", "send", '{"n": 7}')
    assert 'done: {"n": 1}' in done.stdout
    assert outside.done[0][2] == {"n": 7}
    assert run("actions", "remove", "mail").exit_code == 0
    assert "no action handler" in run("actions", "remove", "mail").stderr


@pytest.mark.law("X1", "X2")
def test_an_action_repeated_with_its_id_runs_once(outside: MemoryOutside, file: str) -> None:
    run("actions", "add", file)
    for _ in range(2):
        assert 'done: {"n": 1}' in run("actions", "run", "mail", "send", "--id", "a1").stdout
    assert len(outside.done) == 1

    outside.refuses = ActionFailed("no such mailbox")
    refused = run("actions", "run", "mail", "send")
    assert (refused.exit_code, "no such mailbox" in refused.stderr) == (1, True)


def test_an_unfinished_action_ends_with_its_id_and_invalid_parameters_are_refused(
    outside: MemoryOutside, file: str
) -> None:
    run("actions", "add", file)
    outside.refuses = AdapterUnreachable("away")
    given_up = run("actions", "run", "mail", "send", "--wait", "-1")

    assert given_up.exit_code == 1
    assert "ask again: --id" in given_up.stderr
    assert "not JSON" in run("actions", "run", "mail", "send", "{").stderr
    assert "the parameters do not fit" in run("actions", "run", "mail", "send", '{"x": 1}').stderr
