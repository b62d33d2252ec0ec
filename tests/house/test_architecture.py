"""What ``docs/architecture.md`` says of folders, and of steps through them, is what there is."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

import pytest

from tests.support.repository import LIBRARY, ROOT, library_modules, name_of
from tools.simulate import measured

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = (ROOT / "docs" / "architecture.md").read_text("utf-8")
INSIDE = f"{name_of(LIBRARY)}/lakesync/"
TABLE = re.compile(r"^\| `([a-z_/.]+)` \| \S", re.MULTILINE)
PARTED = "client"
"""The one folder whose folders are told by themselves."""
REFERENCE = re.compile(r"`([a-z0-9_/]+\.py): ([\w.]+)`")
"""A file of the library, and what is defined in it: ``gateway/push.py: PushService.push``."""
STEP = re.compile(r"^(\d+)\. (.*)", re.MULTILINE)
STEPS_MAX = {
    "A push": 15,
    "A pull": 20,
    "A flush": 12,
    "A poll of a connector": 12,
    "A delivery to a declared database": 12,
}
"""By walk through the folders."""
QUESTIONS = [
    "Where is a sync rule decided?",
    "Where is a PostgreSQL date read?",
    "Where does a broadcast leave?",
    "Where is an expired token refused?",
    "What do I copy to add an outside system?",
]
"""A stranger's, each answered in a paragraph."""


def section(title: str) -> str:
    """Return the text below a heading, up to the next one of its level or above."""
    level = title.partition(" ")[0]
    _, text = PAGE.split(f"\n{title}\n")
    return re.split(rf"^#{{2,{len(level)}}} ", text, maxsplit=1, flags=re.MULTILINE)[0]


def definitions(body: list[ast.stmt], owner: str = "") -> Iterator[str]:
    """Yield the functions, classes and methods that statements define."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield owner + node.name
        if isinstance(node, ast.ClassDef):
            yield from definitions(node.body, f"{owner}{node.name}.")


DEFINED = {
    module.name.removeprefix(INSIDE): set(definitions(module.tree.body))
    for module in library_modules()
}


def test_architecture_page_begins_with_the_folders_in_the_layers_of_imports() -> None:
    _, diagram, *_ = section("## The folders").split("```")
    rows = re.findall(r"^[├┌].*\n│ (.*)│$", diagram, re.MULTILINE)
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    layers = settings["tool"]["importlinter"]["contracts"][0]["layers"]

    assert PAGE.startswith("# Architecture\n\n## The folders\n")
    shown = [[cell.split()[0] for cell in row.split("│")] for row in rows]
    assert shown == [layer.split(" | ") for layer in layers]


def test_architecture_page_lists_each_folder_of_the_library_once() -> None:
    listed = TABLE.findall(section("## The folders"))
    paths = [PurePosixPath(module.name.removeprefix(INSIDE)) for module in library_modules()]
    folders = {
        "/".join(path.parts[: 2 if path.parts[0] == PARTED else 1])
        for path in paths
        if len(path.parts) > 1 and path.parts[:-1] != (PARTED,)
    }

    assert len(listed) == len(set(listed))
    assert {name for name in listed if not name.endswith(".py")} == folders


def test_references_in_the_architecture_page_are_defined() -> None:
    references = REFERENCE.findall(PAGE)
    missing = [f"{path}: {name}" for path, name in references if name not in DEFINED.get(path, ())]

    assert missing == []
    assert PAGE.count(".py: ") == len(references)  # none is written in another form


@pytest.mark.parametrize("walk", STEPS_MAX)
def test_walk_has_few_steps_and_each_begins_with_a_reference(walk: str) -> None:
    steps = STEP.findall(section(f"### {walk}"))

    assert [int(number) for number, _ in steps] == [*range(1, len(steps) + 1)]
    assert 1 < len(steps) <= STEPS_MAX[walk]
    assert [step for _, step in steps if not REFERENCE.match(step)] == []


def test_questions_of_a_stranger_are_answered_by_references() -> None:
    answers = section("## Where is …?")
    asked = re.findall(r"^\*\*(.+?)\*\*", answers, re.MULTILINE)
    paragraphs = answers.strip().split("\n\n")

    assert asked == QUESTIONS
    assert [text for text in paragraphs if not REFERENCE.search(text)] == []
    assert len(paragraphs) == len(QUESTIONS)


def test_paths_in_the_coverage_lists_of_the_simulation_exist() -> None:
    folders = [LIBRARY / "lakesync" / folder for folder in measured.MEASURED]
    left_out = [name for name in measured.NOT_MEASURED if not any(LIBRARY.rglob(name[2:]))]

    assert [folder for folder in folders if not folder.is_dir()] == []
    assert [name for name in left_out if name != "*_pb2.py"] == []
