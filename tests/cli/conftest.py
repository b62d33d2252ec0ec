"""How the tests of the command line run it, and the gateway that commands lead to."""

from __future__ import annotations

import os
from functools import cache
from typing import TYPE_CHECKING

import pytest
from typer import testing
from typer.main import get_command

from tests.support.local_gateway import LocalGateway, serve_gateway, write_stack_file

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(autouse=True, scope="session")
def commands_are_made_once() -> Iterator[None]:
    """Typer makes all commands of an application anew for each line that is tried on it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(testing, "_get_command", cache(get_command))
        yield


@pytest.fixture
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to run in, and no variable of ours or of AWS."""
    for name in list(os.environ):
        if name.startswith(("LAKESYNC_", "AWS_")):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def gateway() -> Iterator[LocalGateway]:
    """A gateway for all tests of a module, each with tables of its own."""
    with serve_gateway() as served:
        yield served


@pytest.fixture
def stack_file(gateway: LocalGateway, empty_folder: Path) -> Path:
    """A stack file that leads to the gateway, with nothing beside it or above it."""
    return write_stack_file(empty_folder, gateway)
