"""What ``docs/architecture.md`` says of folders is what there is."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from tests.support.repository import LIBRARY, ROOT, library_modules, name_of
from tools.simulate import measured

TABLE = re.compile(r"^\| `([a-z_/.]+)` \| \S", re.MULTILINE)
PARTED = "client"
"""The one folder whose folders are told by themselves."""


def test_architecture_page_lists_each_folder_of_the_library_once() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    _, ideas = page.split("## The idea")
    listed = TABLE.findall(ideas.split("## ")[0])
    inside = f"{name_of(LIBRARY)}/lakesync/"
    paths = [PurePosixPath(module.name.removeprefix(inside)) for module in library_modules()]
    folders = {
        "/".join(path.parts[: 2 if path.parts[0] == PARTED else 1])
        for path in paths
        if len(path.parts) > 1 and path.parts[:-1] != (PARTED,)
    }

    assert len(listed) == len(set(listed))
    assert {name for name in listed if not name.endswith(".py")} == folders


def test_paths_in_the_coverage_lists_of_the_simulation_exist() -> None:
    folders = [LIBRARY / "lakesync" / folder for folder in measured.MEASURED]
    left_out = [name for name in measured.NOT_MEASURED if not any(LIBRARY.rglob(name[2:]))]

    assert [folder for folder in folders if not folder.is_dir()] == []
    assert [name for name in left_out if name != "*_pb2.py"] == []
