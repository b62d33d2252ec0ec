"""`lakesync databases new`: create a package with a database of your own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lakesync.cli.new_package import created
from lakesync.cli.session import Session, command

_NAME = typer.Argument(help="The new kind's name: lower-case letters, digits and _.")
_FOLDER = typer.Option("--folder", help="Where to create the package; by default ./NAME.")


@command
def new(
    session: Session,
    *,
    name: Annotated[str, _NAME],
    folder: Annotated[Path | None, _FOLDER] = None,
) -> None:
    """Create a Python package with a working kind of database, and tests that it passes.

    The database is a file of SQLite. Replace the dialect by that of your own database, and keep the
    tests passing. A folder that is not empty is refused. Nothing is deployed.

    Example:
      lakesync databases new duckdb
    """
    place = folder or Path(name)
    made = created("database_package", name, place)
    session.out.answer(
        {"folder": str(place), "files": made},
        f"created: {place}; its README.md says how to run its tests (pytest) and what to change",
    )
