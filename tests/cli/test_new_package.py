"""`lakesync connectors new` and `databases new`: what is made works, and its tests say so."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from typing import TYPE_CHECKING

import pytest

from tests.support.command_lines import run
from tests.support.repository import ROOT

if TYPE_CHECKING:
    from pathlib import Path


CONNECTOR = "print(kind.name, *kind.tables(None).values())"
DATABASE = "print(kind.title, type(kind.open(place)).__name__)"


@pytest.mark.parametrize(
    ("kind", "asks", "says", "passed"),
    [
        ("connectors", CONNECTOR, ["web_shop", "web_shop_items"], "10 passed"),
        ("databases", DATABASE, ["web_shop", "SqlAdapter"], "24 passed"),
    ],
)
def test_a_generated_package_has_its_entry_point_and_passes_its_tests(
    kind: str, asks: str, says: list[str], passed: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    made = run(kind, "new", "web_shop")
    assert (made.exit_code, "pytest" in made.stdout) == (0, True)
    package = tmp_path / "web_shop"
    project = tomllib.loads((package / "pyproject.toml").read_text())["project"]
    module, _, name = project["entry-points"][f"lakesync.{kind}"]["web_shop"].partition(":")
    given = "from lakesync.adapters.database_types import DatabasePlace; "
    given += "place = DatabasePlace('web_shop:///a/file', 'g')"
    asks = f"{given}; from {module} import {name} as kind; {asks}"

    def python(*words: str) -> str:
        path = os.pathsep.join([str(package), str(ROOT / "layers" / "lakesync" / "python")])
        done = subprocess.run(
            [sys.executable, *words], cwd=package, env=os.environ | {"PYTHONPATH": path},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert python("-c", asks).split() == says
    assert passed in python("-m", "pytest", "-q", "-p", "no:cacheprovider")
    assert not [path for path in package.rglob("*.*") if "__NAME__" in str(path)]
    assert "__" not in (package / "README.md").read_text().replace("__init__", "").replace(
        "lakesync_web_shop", ""
    )


def test_an_invalid_package_name_and_a_non_empty_folder_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("Shop", "1shop", "a-b", "class", "../x", "x" * 41):
        refused = run("connectors", "new", name)
        assert (refused.exit_code, "lower-case" in refused.stderr) == (1, True), name
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "mine.txt").write_text("mine")
    refused = run("connectors", "new", "shop")
    assert (refused.exit_code, "--folder" in refused.stderr) == (1, True)
    assert [path.name for path in (tmp_path / "shop").iterdir()] == ["mine.txt"]

    made = json.loads(run("connectors", "new", "shop", "--folder", "other", "--json").stdout)
    assert made["folder"] == "other"
    assert set(made["files"]) == {
        "pyproject.toml", "README.md", "lakesync_shop/__init__.py", "tests/test_shop.py",
    }  # fmt: skip
