"""Every module of `benchmarks` runs on the code as it is, small, and in time: no figure is kept.

Those of the deployed stack are run by `tests/stack/test_benchmarks.py`.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from benchmarks import __main__ as command
from benchmarks import children
from benchmarks.children import QUICK_SECONDS_MAX, Unmeasured, run_module

SERVERS = frozenset({"buffer", "capture", "connectors", "databases", "flows", "small_batches"})
"""What starts a database or an emulator."""
IN_BROWSER = frozenset({"browser"})
"""What starts Chromium."""
ALONE = [name for name in command.MODULES if name not in (*command.SPARK, *command.STACK)]


def marked(name: str) -> object:
    """Return a module's name as a parameter, with the marker of what it needs."""
    if name in IN_BROWSER:
        return pytest.param(name, marks=[pytest.mark.browser])
    return pytest.param(name, marks=[pytest.mark.emulator] if name in SERVERS else [])


@pytest.mark.parametrize("name", [marked(name) for name in ALONE])
def test_benchmark_runs_and_ends(name: str) -> None:
    assert_runs(name)


def assert_runs(name: str) -> None:
    """Run a module small; it gives figures, each of another name."""
    entries = run_module(name, quick=True, seconds_max=QUICK_SECONDS_MAX)
    names = [entry["name"] for entry in entries]
    assert names
    assert len(names) == len(set(names))
    assert all(entry["value"] is not None or name == "imports" for entry in entries)


def test_every_benchmark_module_is_standalone_spark_or_stack() -> None:
    assert {*ALONE, *command.SPARK, *command.STACK} == set(command.MODULES)
    assert set(ALONE) >= SERVERS | IN_BROWSER


# --- modules that do not run ----------------------------------------------------------------------


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose modules are found as those of `benchmarks`."""
    package = tmp_path / "benchmarks"
    package.mkdir()
    for file in Path(children.__file__).parent.glob("*.py"):
        (package / file.name).symlink_to(file)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *filter(None, [_path()])]))
    monkeypatch.chdir(tmp_path)
    return package


def _path() -> str:
    return os.environ.get("PYTHONPATH", "")


def test_module_that_exceeds_its_time_limit_is_killed_and_reported(
    broken: Path, tmp_path: Path
) -> None:
    mark = tmp_path / "child"
    (broken / "endless.py").write_text(
        "import pathlib, subprocess, sys, time\n"
        "def run():\n"
        "    child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(3600)'])\n"
        f"    pathlib.Path({str(mark)!r}).write_text(str(child.pid))\n"
        "    time.sleep(3600)\n"
    )
    with pytest.raises(Unmeasured, match="did not end within 5 s"):
        run_module("endless", quick=True, seconds_max=5.0)
    if mark.exists():  # it had come so far in its time
        assert_ends(int(mark.read_text()))


def test_module_that_fails_reports_its_error(broken: Path) -> None:
    (broken / "broken.py").write_text("def run():\n    raise ValueError('no such store')\n")
    with pytest.raises(Unmeasured, match="ValueError: no such store"):
        run_module("broken", quick=True, seconds_max=QUICK_SECONDS_MAX)


def assert_ends(pid: int) -> None:
    """Wait until a process that was killed is gone."""
    deadline = time.monotonic() + 60
    while Path(f"/proc/{pid}").exists() and "Z" not in state_of(pid):
        assert time.monotonic() < deadline, "a descendant lives on"
        time.sleep(0.05)


def state_of(pid: int) -> str:
    """Return the state of a process, as the system writes it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return "Z"
