"""What is told where packages are missing, and what README says to install."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from typing import TYPE_CHECKING, Any

import pytest

from lakesync import installing
from tests.support.repository import ROOT
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable

WITHOUT = """
import sys
sys.modules[{module!r}] = None
sys.argv = ["lakesync", *{words!r}]
from lakesync.cli.__main__ import main
main()
"""


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("typer", ["--version"]),
        ("jwt", ["pull", "--url", "http://127.0.0.1:9", "--gateway", "g", "--token", "a.b.c"]),
    ],
)
def test_the_command_line_without_its_extra_names_the_command_to_install(
    module: str, words: list[str]
) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", WITHOUT.format(module=module, words=words)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        env={"PYTHONPATH": ":".join(sys.path)},
        cwd=ROOT,
    )

    assert ended.returncode == 2, ended.stderr
    assert module in ended.stderr
    assert re.search(r"pip install .*\[cli\]", ended.stderr)
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        (None, 'pip install ".[cli]" in the folder of LakeSync'),
        ({"url": "file:///src/lakesync", "dir_info": {}},
         'pip install "lakesync[cli] @ file:///src/lakesync"'),
        ({"url": "https://g.example/l.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}},
         'pip install "lakesync[cli] @ git+https://g.example/l.git@abc"'),
    ],
)  # fmt: skip
def test_the_install_command_uses_the_origin_of_the_package(
    origin: dict[str, Any] | None, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Distribution:
        def read_text(self, name: str) -> str | None:
            assert name == "direct_url.json"
            return None if origin is None else json.dumps(origin)

    monkeypatch.setattr(installing, "distribution", lambda _: Distribution())

    assert installing.how_to_install("cli") == command


def test_readme_installs_from_a_folder_and_known_extras() -> None:
    """Nothing is on a package index yet, so a bare name would find nothing, or somebody else's."""
    readme = (ROOT / "README.md").read_text("utf-8")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    targets = re.findall(r'pip install "([^"\[]*)\[(\w+)\]"', readme)

    assert targets
    assert {extra for _, extra in targets} <= set(project["optional-dependencies"])
    assert all(target == "." or "/" in target for target, _ in targets)


def test_no_page_or_message_installs_lakesync_from_a_package_index() -> None:
    bare = re.compile(r"""pip install[^`\n]*['"` ]lakesync\[\w+\]['"`]""")
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
    code = (ROOT / "layers" / "lakesync" / "python" / "lakesync").rglob("*.py")
    asked = [str(path) for path in [*pages, *code] if bare.search(path.read_text("utf-8"))]

    assert asked == []
    assert bare.search("pip install 'lakesync[postgres]'")


def test_the_console_script_is_a_callable() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    module, _, name = project["scripts"]["lakesync"].partition(":")
    entry: Callable[[], None] = getattr(__import__(module, fromlist=[name]), name)

    assert callable(entry)
