"""A folder's ``__init__`` names in ``DOORS`` the modules that other folders may import."""

from __future__ import annotations

import ast
from collections import defaultdict

import pytest

from tests.support.repository import LIBRARY, imported, library_modules, modules, name_of

FOLDERS = sorted(path.parent.name for path in (LIBRARY / "lakesync").glob("*/__init__.py"))


def entered() -> dict[str, set[str]]:
    """Return by folder which of its modules others import, for types and in functions too."""
    every = {module.dotted for module in library_modules()}
    doors: dict[str, set[str]] = defaultdict(set)
    for module in modules(f"{name_of(LIBRARY)}/", "functions/", "glue_jobs/"):
        own = module.dotted.split(".")[1:2] if module.name.startswith("layers/") else []
        for name in imported(module) & every:
            folder, _, inner = name.removeprefix("lakesync.").partition(".")
            if inner and [folder] != own:
                doors[folder].add(inner)
    return doors


def named(folder: str) -> list[str]:
    """Return what a folder's ``__init__`` names."""
    text = (LIBRARY / "lakesync" / folder / "__init__.py").read_text("utf-8")
    for node in ast.parse(text).body:
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "DOORS":
            assert node.value is not None
            return list(ast.literal_eval(node.value))
    return []


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_folder_names_exactly_the_modules_that_others_import(folder: str) -> None:
    doors = named(folder)

    assert doors == sorted(entered()[folder])
