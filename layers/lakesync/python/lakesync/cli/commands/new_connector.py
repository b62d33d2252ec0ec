"""`lakesync connectors new`: create a package with a connector of your own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lakesync.cli.new_package import created
from lakesync.cli.session import Session, command

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
    made = created("connector_package", name, place)
    session.out.answer(
        {"folder": str(place), "files": made},
        f"created: {place}; its README.md says how to run its tests (pytest) and what to change",
    )
