"""The public surface: what is exported is there, sorted, typed and documented."""

from __future__ import annotations

import ast
import importlib
import inspect
from types import FunctionType
from typing import TYPE_CHECKING

import pytest

from tests.support.public_face import PACKAGES
from tests.support.repository import LIBRARY, Module, library_modules

if TYPE_CHECKING:
    from collections.abc import Iterator


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


def test_public_names_and_their_methods_have_docstrings() -> None:
    missing = [
        f"{package}.{name}{'.' if member else ''}{member}"
        for package in PACKAGES
        for name in getattr(importlib.import_module(package), "__all__", ())
        for member, value in documented(getattr(importlib.import_module(package), name))
        if not inspect.getdoc(value)
    ]

    assert missing == []


def documented(value: object) -> Iterator[tuple[str, object]]:
    """Yield what help() shows of a public name: itself, and the methods of a class of ours."""
    if inspect.isclass(value) or inspect.isfunction(value):
        yield "", value
    for name in dir(value) if inspect.isclass(value) else ():
        member = inspect.getattr_static(value, name)
        if not name.startswith("_") and isinstance(member, FunctionType | property | classmethod):
            yield name, member


def test_package_has_a_py_typed_marker() -> None:
    assert (LIBRARY / "lakesync" / "py.typed").exists()
