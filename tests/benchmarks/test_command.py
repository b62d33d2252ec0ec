"""`python -m benchmarks` measures module after module, and keeps what it has measured."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest

from benchmarks import __main__ as command
from benchmarks import small_merges, sources
from benchmarks.children import Unmeasured
from benchmarks.entries import at_most
from benchmarks.scale.scenarios import lake

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from benchmarks.entries import Entry


class Modules:
    """Modules that give what a test says, one figure each."""

    def __init__(self) -> None:
        self.run: list[str] = []
        self.instead: dict[str, Callable[[], list[Entry]]] = {}

    def __call__(self, name: str, *, quick: bool, seconds_max: float) -> list[Entry]:
        """Stand in for `run_module`."""
        assert not quick
        assert seconds_max
        self.run.append(name)
        return self.instead.get(name, lambda: [figure(name)])()


def figure(module: str, value: float = 1.0) -> Entry:
    return at_most(f"{module}_s", value, "s", 10, "measured")


def fail() -> list[Entry]:
    raise Unmeasured("ValueError: no such store")


def interrupt() -> list[Entry]:
    """Be a module during which somebody ends the run."""
    raise KeyboardInterrupt


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Modules:
    """Modules in place of the real ones, and an empty file of results."""
    (tmp_path / "results.json").write_text("[]")
    for module in (command, sources):
        monkeypatch.setattr(module, "RESULTS", tmp_path / "results.json")
        monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(command, "digest_of", lambda name: f"of {name}")
    made = Modules()
    monkeypatch.setattr(command, "run_module", made)
    return made


def measure(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["benchmarks", *arguments])
    return command.main()


def on_record() -> dict[str, Any]:
    return {entry["name"]: entry["value"] for entry in sources.recorded()}


def test_failed_module_leaves_the_figures_of_others_recorded(
    modules: Modules, monkeypatch: pytest.MonkeyPatch
) -> None:
    modules.instead["rules"] = fail

    assert measure(monkeypatch, "--only", "gateway", "rules", "sparse") == 1

    assert on_record() == {"gateway_s": 1.0, "rules": None, "sparse_s": 1.0}


def test_interrupted_run_keeps_the_figures_measured_before(
    modules: Modules, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    modules.instead["sparse"] = interrupt

    with pytest.raises(KeyboardInterrupt):
        measure(monkeypatch, "--only", "gateway", "rules", "sparse")

    assert on_record() == {"gateway_s": 1.0, "rules_s": 1.0}
    assert "rules_s" in capsys.readouterr().out


def test_progress_of_each_module_is_shown(
    modules: Modules, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert measure(monkeypatch, "--only", "gateway", "rules") == 0

    shown = capsys.readouterr().err
    assert modules.run == ["gateway", "rules"]
    assert "[1/2] gateway" in shown
    assert "[2/2] rules" in shown


def test_stack_that_fails_to_start_leaves_other_figures_recorded(
    modules: Modules, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> None:
        raise RuntimeError("the port is taken")

    monkeypatch.setattr(command, "running_stack", broken)
    modules.instead["live"] = fail

    assert measure(monkeypatch, "--only", "live", "imports") == 1

    assert on_record() == {"live": None, "imports_s": 1.0}


def test_module_reads_the_figures_of_modules_run_before_it(
    modules: Modules, monkeypatch: pytest.MonkeyPatch
) -> None:
    modules.instead["small_merges"] = lambda: [at_most(small_merges.FIGURE, 1.5, "s", 4, "")]
    modules.instead["scale"] = lambda: [figure("scale", lake._measured_s())]

    assert measure(monkeypatch, "--only", "scale", "small_merges") == 0

    assert on_record() == {small_merges.FIGURE: 1.5, "scale_s": 1.5}


@pytest.mark.usefixtures("modules")
def test_missing_figure_is_assumed_only_in_a_quick_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(RuntimeError, match="measure small merges first"):
        lake._measured_s()
    monkeypatch.setenv("LAKESYNC_BENCHMARKS_QUICK", "1")
    assert lake._measured_s() == small_merges.TARGET


def test_measuring_a_module_again_replaces_its_older_figures(
    modules: Modules, monkeypatch: pytest.MonkeyPatch
) -> None:
    modules.instead["rules"] = fail
    measure(monkeypatch, "--only", "rules", "gateway")
    modules.instead["rules"] = lambda: [at_most("another_s", 2.0, "s", 10, "")]
    measure(monkeypatch, "--only", "rules")
    assert on_record() == {"gateway_s": 1.0, "another_s": 2.0}

    modules.instead["rules"] = fail
    measure(monkeypatch, "--only", "rules")
    assert on_record() == {"gateway_s": 1.0, "another_s": 2.0, "rules": None}


def test_unknown_module_name_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit, match="no module is called gatewy"):
        measure(monkeypatch, "--only", "gateway", "gatewy")
