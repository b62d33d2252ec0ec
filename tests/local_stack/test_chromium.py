"""Where Chromium is found, and what is said where there is none."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tools.chromium import NAMES, ensure_chromium, find_chromium
from tools.local_stack.errors import LocalStackError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the only folder in which programs are found."""
    for name in ("CHROMIUM", "LAKESYNC_WITHOUT_CHROMIUM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def program(path: Path, text: str = "") -> str:
    path.write_text(f"#!/bin/sh\n{text}")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize("name", NAMES)
def test_machines_own_is_found_by_each_of_its_names(programs: Path, name: str) -> None:
    assert find_chromium() is None
    path = program(programs / name)

    assert find_chromium() == path
    ensure_chromium()


def test_the_one_that_is_named_comes_first(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(programs / "chromium")
    named = program(programs / "another")
    monkeypatch.setenv("CHROMIUM", named)

    assert find_chromium() == named


def test_named_one_that_is_not_there_is_not_replaced(
    programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(programs / "chromium")
    monkeypatch.setenv("CHROMIUM", str(programs / "missing"))

    with pytest.raises(LocalStackError, match="CHROMIUM"):
        ensure_chromium()


def test_root_with_apt_get_installs_it(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    target = programs / "chromium"
    program(
        programs / "apt-get",
        f'[ "$2" = update ] || {{ echo "#!/bin/sh" > {target}; /bin/chmod 755 {target}; }}\n',
    )

    ensure_chromium()

    assert find_chromium() == str(target)


@pytest.mark.parametrize("apt_get", ["exit 100", "exit 0"])
def test_what_to_install_is_said_where_apt_get_cannot(
    programs: Path, monkeypatch: pytest.MonkeyPatch, apt_get: str
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    program(programs / "apt-get", apt_get)

    with pytest.raises(LocalStackError, match=r"install Chromium .* or set CHROMIUM"):
        ensure_chromium()


def test_others_are_told_what_to_install(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    program(programs / "apt-get")

    with pytest.raises(LocalStackError, match=r"install Chromium .* or set CHROMIUM"):
        ensure_chromium()


def test_reason_why_there_is_none_is_enough(
    programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKESYNC_WITHOUT_CHROMIUM", "none for this processor")

    ensure_chromium()
