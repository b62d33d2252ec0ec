"""`lakesync connectors new`: create a package with a connector of your own."""

from __future__ import annotations

import keyword
import re
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Final

import typer

from lakesync.cli.session import Session, command
from lakesync.errors import Conflict, ValidationFailed

NAME_CHARS_MAX: Final = 40
"""The longest name of a new connector type, which becomes part of the package's names."""
_FILES: Final = {
    "pyproject": "pyproject.toml",
    "README": "README.md",
    "connector": "lakesync___NAME__/__init__.py",
    "test": "tests/test___NAME__.py",
}
_NAME = typer.Argument(help="The new connector type's name: lower-case letters, digits and _.")
_FOLDER = typer.Option("--folder", help="Where to create the package; by default ./NAME.")


@command
def new(
    session: Session,
    *,
    name: Annotated[str, _NAME],
    folder: Annotated[Path | None, _FOLDER] = None,
) -> None:
    """Create a Python package with a working connector, and tests that it passes.

    The connector reads a sample source, which the tests simulate. Replace the sample by your own
    source, and keep the tests passing. A folder that is not empty is refused. Nothing is deployed.

    Example:
      lakesync connectors new shopify
    """
    place = folder or Path(name)
    made = _written(_checked(name), place)
    session.out.answer(
        {"folder": str(place), "files": made},
        f"created: {place}; its README.md says how to run its tests (pytest) and what to change",
    )


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


def _written(name: str, place: Path) -> list[str]:
    """Write the files into a new or empty folder; returns their names."""
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise Conflict(f"{place} is there already, and not empty: name another with --folder")
    class_name = "".join(part.capitalize() for part in name.split("_")) or name
    templates = files("lakesync.cli") / "connector_package"
    made = []
    for template, path in _FILES.items():
        text = (templates / f"{template}.txt").read_text("utf-8")
        target = place / path.replace("__NAME__", name)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text.replace("__NAME__", name).replace("__CLASS__", class_name), "utf-8")
        made.append(str(target.relative_to(place)))
    return made
