"""The public surface: what is exported is there, sorted, typed and documented."""

from __future__ import annotations

import ast
import importlib

import pytest

from tests.support.repository import LIBRARY, Module, library_modules


def exported(module: Module) -> list[str] | None:
    """Return the names in a module's ``__all__``, or None if it has none."""
    for node in module.tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            names: list[str] = ast.literal_eval(node.value)
            return names
    return None


EXPORTING = [
    module
    for module in library_modules()
    if "__all__" in module.text and exported(module) is not None
]


@pytest.mark.parametrize("module", EXPORTING, ids=lambda module: module.dotted)
def test_exported_names_exist(module: Module) -> None:
    names = exported(module) or []
    imported = importlib.import_module(module.dotted)

    assert [name for name in names if not hasattr(imported, name)] == []


def test_package_exports_exactly_the_names_it_imports() -> None:
    (package,) = [module for module in library_modules() if module.dotted == "lakesync"]
    bound = {
        alias.asname or alias.name
        for node in package.tree.body
        if isinstance(node, ast.ImportFrom) and node.module != "__future__"
        for alias in node.names
    }

    assert set(exported(package) or []) == bound


def test_package_has_a_py_typed_marker() -> None:
    assert (LIBRARY / "lakesync" / "py.typed").exists()
