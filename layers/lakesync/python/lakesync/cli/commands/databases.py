"""`lakesync databases`, and packages with a database or a connector of one's own.

Databases are copied from one to another and compared; packages are created from templates.
"""

from __future__ import annotations

import keyword
import os
import re
from contextlib import closing
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from lakesync.analysis.connection import UsageFault
from lakesync.cli.session import Session, command
from lakesync.core.wording import plural
from lakesync.errors import Conflict, NotFound, ValidationFailed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lakesync.adapters.copying import Compared, Copied
    from lakesync.adapters.database import DatabaseAdapter, DestinationDatabase
    from lakesync.cli.input_output import Output

# --- packages from templates ----------------------------------------------------------------------


NAME_CHARS_MAX: Final = 40
"""The longest name of a new type, which becomes part of its package's names."""


def created(template: str, name: str, place: Path) -> list[str]:
    """Create a package in a new or empty folder; return the names of its files."""
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


# --- databases ------------------------------------------------------------------------------------


_SOURCE = typer.Option(
    "--from-env", metavar="NAME", help="The environment variable with the source's URL."
)
_TARGET = typer.Option(
    "--to-env", metavar="NAME", help="The environment variable with the target's URL."
)
_TABLES = typer.Option("--table", help="Only this table. Repeatable.")


@command
def copy(
    session: Session,
    *,
    source: Annotated[str, _SOURCE],
    target: Annotated[str, _TARGET],
    table: Annotated[list[str] | None, _TABLES] = None,
    verify: Annotated[
        bool, typer.Option(help="Compare row counts and checksums afterwards.")
    ] = True,
) -> None:
    """Copy the tables of a gateway from one database to another.

    The copy continues from the target's position: repeat it after any failure, or to follow a
    growing source. Exits with 1 if the databases differ afterwards. URLs are read from environment
    variables, so that no password is in a command: postgresql://user:password@host/database,
    mysql://…, mariadb://…, bigquery://project/dataset, s3://bucket/folder, or a kind that an
    installed package adds.

    Example:
      lakesync databases copy --gateway acme --from-env OLD_URL --to-env NEW_URL
    """
    from lakesync.adapters.copying import copy_table

    with closing(_opened(session, source)) as left, closing(_opened(session, target)) as right:
        for name in _chosen(left, table):
            with session.out.progress(f"copying {name}"):
                copied = copy_table(
                    left, right, name, on_progress=lambda done: _note(session.out, done)
                ).unwrap()
            session.out.answer(
                {"table": name, "deltas": copied.deltas, "until": str(copied.until)},
                f"{name}: {plural(copied.deltas, 'delta')} copied",
            )
        if verify:
            _compare(session, left, right, table)


@command
def compare(
    session: Session,
    *,
    source: Annotated[str, _SOURCE],
    target: Annotated[str, _TARGET],
    table: Annotated[list[str] | None, _TABLES] = None,
) -> None:
    """Compare a gateway's rows in two databases, by count and checksum; exit with 1 if they differ.

    Example:
      lakesync databases compare --gateway acme --from-env OLD_URL --to-env NEW_URL
    """
    with closing(_opened(session, source)) as left, closing(_opened(session, target)) as right:
        _compare(session, left, right, table)


def _compare(
    session: Session, left: DatabaseAdapter, right: DatabaseAdapter, tables: Sequence[str] | None
) -> None:
    from lakesync.adapters.copying import compare_table

    different: list[Compared] = []
    for name in _chosen(left, tables):
        with session.out.progress(f"comparing {name}"):
            compared = compare_table(left, right, name).unwrap()
        if not compared.is_equal:
            different.append(compared)
        session.out.answer(
            {
                "table": name,
                "rows": compared.rows,
                "checksum": compared.checksum,
                "equal": compared.is_equal,
                "difference": compared.difference,
            },
            f"{name}: {plural(compared.rows, 'row')}, "
            + ("equal" if compared.is_equal else f"different from row {compared.difference!r} on")
            + f" (SHA-256 {compared.checksum[:16]}…)",
        )
    if different:
        raise Conflict(
            f"{plural(len(different), 'table')} not equal, first {different[0].table}; copy again "
            "while nobody writes to either database"
        )


def _opened(session: Session, variable: str) -> DestinationDatabase:
    from lakesync.adapters.connect import database_adapter

    url = os.environ.get(variable)
    if not url:
        raise UsageFault(f"set {variable} to the database's URL")
    return database_adapter(url, session.connection.gateway)


def _chosen(source: DatabaseAdapter, tables: Sequence[str] | None) -> Sequence[str]:
    there = source.tables().unwrap()
    unknown = sorted(set(tables or ()) - there.keys())
    if unknown:
        raise NotFound(f"the source has no table {unknown[0]}; it has {', '.join(there) or 'none'}")
    return tables or list(there)


def _note(out: Output, copied: Copied) -> None:
    out.note(f"{copied.table}: {plural(copied.deltas, 'delta')} so far")


# --- databases new, connectors new ----------------------------------------------------------------


def _create(session: Session, template: str, name: str, folder: Path | None) -> None:
    place = folder or Path(name)
    session.out.answer(
        {"folder": str(place), "files": created(template, name, place)},
        f"created: {place}; its README.md says how to run its tests (pytest) and what to change",
    )


_DATABASE_NAME = typer.Argument(help="The new kind's name: lower-case letters, digits and _.")
_FOLDER = typer.Option("--folder", help="Where to create the package; by default ./NAME.")


@command
def new_database(
    session: Session,
    *,
    name: Annotated[str, _DATABASE_NAME],
    folder: Annotated[Path | None, _FOLDER] = None,
) -> None:
    """Create a Python package with a working kind of database, and tests that it passes.

    The database is a file of SQLite. Replace the dialect by that of your own database, and keep the
    tests passing. A folder that is not empty is refused. Nothing is deployed.

    Example:
      lakesync databases new duckdb
    """
    _create(session, "database_package", name, folder)


_CONNECTOR_NAME = typer.Argument(
    help="The new connector type's name: lower-case letters, digits and _."
)


@command
def new_connector(
    session: Session,
    *,
    name: Annotated[str, _CONNECTOR_NAME],
    folder: Annotated[Path | None, _FOLDER] = None,
) -> None:
    """Create a Python package with a working connector, and tests that it passes.

    The connector reads a sample source, which the tests simulate. Replace the sample by your own
    source, and keep the tests passing. A folder that is not empty is refused. Nothing is deployed.

    Example:
      lakesync connectors new shopify
    """
    _create(session, "connector_package", name, folder)
