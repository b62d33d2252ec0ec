"""A command closes what it opened: Python has nothing to warn of when it ends."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.support.local_gateway import GATEWAY
from tests.support.repository import ROOT
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from pathlib import Path

LEAVES_ONE_OPEN = "import socket; socket.socket()"


def warned(folder: Path, *words: str) -> bool:
    """Return whether Python, run with these words, warns of something that is still open."""
    unreachable = {
        "AWS_ENDPOINT_URL": "http://127.0.0.1:9",
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "AKIDEXAMPLE",
        "AWS_SECRET_ACCESS_KEY": "x",
        "AWS_MAX_ATTEMPTS": "1",
        "PYTHONPATH": str(ROOT / "layers" / "lakesync" / "python"),
    }
    ended = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error::ResourceWarning", *words],
        cwd=folder, env=os.environ | unreachable, capture_output=True, text=True,
        timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    return "ResourceWarning" in ended.stderr


def test_python_warns_of_an_unclosed_resource(empty_folder: Path) -> None:
    assert warned(empty_folder, "-c", LEAVES_ONE_OPEN)


def test_a_detached_process_gives_no_resource_warning(empty_folder: Path) -> None:
    starts = (
        "import os, pathlib, sys\n"
        f"sys.path.insert(0, {str(ROOT)!r})\n"
        "from tools.local_stack.processes import start_detached\n"
        "here = pathlib.Path()\n"
        "start_detached(['sleep', '5'], environment=os.environ, folder=here, log=here / 'log')\n"
    )
    assert not warned(empty_folder, "-c", starts)


@pytest.mark.usefixtures("stack_file")
@pytest.mark.parametrize(
    "words",
    [
        ("push", "--table", "t", "--row", "r", "--set", "a=1"),
        ("push", "--table", "t", "--row", "r", "--set", "a=1", "--database", "own.db"),
        ("push", "nothing.json"),
        ("pull", "--rows"),
        ("status",),
        ("clients", "list", GATEWAY),
        ("schema", "list", "--gateway", "nope"),
        ("quota", "show", "--stack", "s"),
        ("query", "select 1", "--stack", "s"),
    ],
    ids=" ".join,
)
def test_a_command_gives_no_resource_warning(empty_folder: Path, words: tuple[str, ...]) -> None:
    assert not warned(empty_folder, "-m", "lakesync.cli", *words)
