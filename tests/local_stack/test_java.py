"""Which Java runs Spark: Glue's own version, the machine's or one that the bootstrap installs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tools import bootstrap
from tools.local_stack import java
from tools.local_stack.errors import LocalStackError

if TYPE_CHECKING:
    from pathlib import Path


def has_java(monkeypatch: pytest.MonkeyPatch, folder: Path, version: str) -> Path:
    """Let the machine have one Java; returns its home."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    program.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(folder))
    monkeypatch.setenv("PATH", "/nowhere")
    java.java_home.cache_clear()
    return folder


@pytest.fixture(autouse=True)
def _own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> object:
    monkeypatch.setattr(java, "OWN_HOME", tmp_path / "none")
    yield
    java.java_home.cache_clear()


def test_installed_java_of_the_version_of_glue_is_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    home = has_java(monkeypatch, tmp_path / "java", "17.0.9")
    assert java.java_home() == home.resolve()


@pytest.mark.parametrize("version", ["1.8.0_392", "11.0.21", "21.0.1", "25"])
def test_java_is_installed_if_the_machine_has_another_version(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str
) -> None:
    has_java(monkeypatch, tmp_path / "java", version)
    made: list[Path] = []
    monkeypatch.setattr(bootstrap, "ensure_folder", lambda folder, _finish: made.append(folder))
    with pytest.raises(LocalStackError, match=r"tools/bootstrap\.sh java"):
        java.java_home()
    bootstrap.ensure_jdk(java.JDK_FOLDER, java.JAVA_VERSIONS)
    assert made == [java.JDK_FOLDER]
    (tmp_path / "none" / "bin").mkdir(parents=True)
    (tmp_path / "none" / "bin" / "java").touch()
    assert java.java_home() == tmp_path / "none"
