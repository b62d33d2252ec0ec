"""Creates Python packages from templates: connectors and databases of one's own."""

from __future__ import annotations

import keyword
import re
from importlib.resources import files
from typing import TYPE_CHECKING, Final

from lakesync.errors import Conflict, ValidationFailed

if TYPE_CHECKING:
    from pathlib import Path

NAME_CHARS_MAX: Final = 40
"""The longest name of a new type, which becomes part of its package's names."""


def created(template: str, name: str, place: Path) -> list[str]:
    """Create a package in a new or empty folder; returns the names of its files.

    Args:
        template: the folder of templates.
        name: the type's name.
        place: the folder.

    Raises:
        ValidationFailed: the name is none.
        Conflict: the folder is not empty.
    """
    name = _checked(name)
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise Conflict(f"{place} is there already, and not empty: name another with --folder")
    class_name = "".join(part.capitalize() for part in name.split("_")) or name
    made = []
    for source in sorted((files("lakesync.cli") / template).iterdir(), key=lambda one: one.name):
        target = place / _path(source.name.removesuffix(".txt"), name)
        target.parent.mkdir(parents=True, exist_ok=True)
        text = source.read_text("utf-8")
        target.write_text(text.replace("__NAME__", name).replace("__CLASS__", class_name), "utf-8")
        made.append(str(target.relative_to(place)))
    return made


def _path(template: str, name: str) -> str:
    """Return where the file of a template is; the package's module has a name of its own."""
    known = {
        "pyproject": "pyproject.toml", "README": "README.md", "test": f"tests/test_{name}.py",
    }  # fmt: skip
    return known.get(template, f"lakesync_{name}/__init__.py")


def _checked(name: str) -> str:
    if (
        not re.fullmatch(r"[a-z][a-z0-9_]*", name)
        or len(name) > NAME_CHARS_MAX
        or keyword.iskeyword(name)
    ):
        raise ValidationFailed(
            f"a type's name is at most {NAME_CHARS_MAX} lower-case letters, digits and _, begins "
            "with a letter, and is not a Python keyword",
            field="name",
        )
    return name
