"""The benchmarks of the deployed stack run and end: next to nothing is measured, none is kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from benchmarks import __main__ as command
from benchmarks.children import QUICK_SECONDS_MAX, run_module

if TYPE_CHECKING:
    from pathlib import Path

    from tools.local_stack.stack import Stack


@pytest.mark.parametrize("name", command.STACK)
def test_benchmark_of_the_stack_runs_and_ends(
    name: str, stack: Stack, stack_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert stack.http
    monkeypatch.setenv("LAKESYNC_STACK_JSON", str(stack_folder / "stack.json"))
    assert run_module(name, quick=True, seconds_max=QUICK_SECONDS_MAX)
