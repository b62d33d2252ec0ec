"""`lakesync client move`: shows how many edits are concerned, and moves a file once told to."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from lakesync.cli.app import app
from lakesync.client import Client
from lakesync.result import Err
from lakesync.testing.memory_gateway import MemoryGateway

if TYPE_CHECKING:
    from pathlib import Path


def left(path: Path, gateway: MemoryGateway) -> Client:
    """Open a file with a gateway."""
    return Client(path, client_id="phone", transport=gateway.transport(sub="phone"))


@pytest.mark.law("K36")
@pytest.mark.parametrize("keep", ["edits", "nothing"])
def test_a_client_file_is_moved_to_another_gateway_only_with_yes(tmp_path: Path, keep: str) -> None:
    path = tmp_path / "app.db"
    with MemoryGateway(tmp_path) as old, left(path, old) as client:
        client.insert("todos", "sent", {"title": "sent"}).unwrap()
        client.sync().unwrap()
        client.insert("todos", "mine", {"title": "unsent"}).unwrap()
    move = ["client", "move", str(path), "--keep", keep, "--json"]
    with MemoryGateway(tmp_path) as new:
        for more in ([], ["--yes"]):
            with left(path, new) as client:
                assert isinstance(client.sync(), Err)
            result = CliRunner().invoke(app, [*move, *more])
            assert result.exit_code == 0, result.output
            answer = json.loads(result.output)
            assert (answer["edits"], answer["moved"]) == (1, bool(more))
        with left(path, new) as client:
            client.sync().unwrap()
        assert list(new.rows("todos")) == (["mine"] if keep == "edits" else [])


def test_client_move_refuses_a_missing_file_and_creates_none(tmp_path: Path) -> None:
    path = tmp_path / "none.db"
    result = CliRunner().invoke(app, ["client", "move", str(path)])

    assert result.exit_code == 2
    assert not path.exists()
