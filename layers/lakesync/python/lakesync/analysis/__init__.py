"""A gateway's lake as it is when it is opened: Arrow, pandas, polars, DuckDB, SQL; for notebooks.

It reads the tables by the same code as the command line; nothing in the lake is changed. It uses
the AWS credentials of the user who runs it. See ``docs/analysis.md``.
"""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from lakesync.analysis.connection import (
    LATER,
    NO_ACCESS,
    Aws,
    Options,
    UsageFault,
    fault_of,
    resolve,
)
from lakesync.analysis.past import as_of as read_as_of
from lakesync.errors import Forbidden, LakeSyncError, NotFound, Unavailable, ValidationFailed
from lakesync.installing import how_to_install
from lakesync.result import Err, Ok

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa

    from lakesync.analysis.connection import Connection
    from lakesync.analysis.lake_queries import Tables
    from lakesync.result import Result

T = TypeVar("T")
_NEEDED: Final = ("boto3", "pyarrow", "pyiceberg", "duckdb")
"""What reads the lake; pandas and polars are looked for where a frame is asked for."""


def open_lake(
    gateway: str | None = None, *, stack: str | None = None, stack_file: str | None = None
) -> Result[OpenedLake, LakeSyncError]:
    """Open a gateway's lake, found as the command line finds it.

    Args:
        gateway: its id; or ``LAKESYNC_GATEWAY``, or that of a stack file.
        stack: the CloudFormation stack; or ``LAKESYNC_STACK``, or that of a stack file.
        stack_file: a stack file, if it is not in this folder or above.

    Raises:
        ImportError: the extra is not installed; says how to install it.
    """
    _check_installed()
    from lakesync.analysis.lake import Lake

    def opened() -> OpenedLake:
        connection = _connection(stack, stack_file, gateway)
        return OpenedLake(Lake(Aws(connection), connection.gateway))

    return _result(opened)


def open_shared(
    *, stack: str | None = None, stack_file: str | None = None
) -> Result[OpenedLake, LakeSyncError]:
    """Open the tables that gateways of a stack share: ``lakesync lake share``.

    Args:
        stack: the CloudFormation stack; or ``LAKESYNC_STACK``, or that of a stack file.
        stack_file: a stack file, if it is not in this folder or above.

    Raises:
        ImportError: the extra is not installed; says how to install it.
    """
    _check_installed()
    from lakesync.analysis.shared_lake import shared_lake

    return _result(lambda: OpenedLake(shared_lake(Aws(_connection(stack, stack_file)))))


def _connection(stack: str | None, stack_file: str | None, gateway: str | None = "") -> Connection:
    """Return how to reach a stack, and one of its gateways unless that is empty."""
    file = None if stack_file is None else Path(stack_file)
    options = Options(gateway=gateway, stack=stack, stack_file=file)
    return resolve(options, os.environ, Path.cwd(), needs_gateway=gateway != "")


class OpenedLake:
    """Tables, as they were when the first of them was asked for: a gateway's, or shared ones."""

    def __init__(self, lake: Tables) -> None:
        self._lake = lake

    def tables(self) -> Result[list[str], LakeSyncError]:
        """Return the tables' names; ``<table>__changes`` is the history of ``<table>``."""
        return _result(self._lake.names)

    def arrow(
        self,
        table: str,
        *,
        columns: Sequence[str] | None = None,
        as_of: str | None = None,
        all_columns: bool = False,
    ) -> Result[pa.Table, LakeSyncError]:
        """Return the rows of a table that are not deleted.

        Args:
            columns: the columns to read, by the names they were written under; all if left out.
            as_of: a time (ISO-8601), a snapshot id or a commit stamp; now if left out.
            all_columns: with LakeSync's own columns, and with rows that are deleted.
        """
        return _result(lambda: self._read(table, columns, as_of, all_columns=all_columns))

    def pandas(self, table: str, **how: Any) -> Result[Any, LakeSyncError]:
        """Return a table as a pandas frame; takes what `arrow` takes.

        Integers, booleans and dates keep their types even if a value is missing: columns are of
        Arrow's types.

        Raises:
            ImportError: pandas is not installed.
        """
        pandas = _imported("pandas")
        return self.arrow(table, **how).map(
            lambda rows: rows.to_pandas(types_mapper=pandas.ArrowDtype)
        )

    def polars(self, table: str, **how: Any) -> Result[Any, LakeSyncError]:
        """Return a table as a polars frame; takes what `arrow` takes.

        Raises:
            ImportError: polars is not installed.
        """
        polars = _imported("polars")
        return self.arrow(table, **how).map(polars.from_arrow)

    def duckdb(self, table: str, **how: Any) -> Result[Any, LakeSyncError]:
        """Return a table as a relation of DuckDB, in a database of its own; arguments as `arrow`.

        Raises:
            ImportError: DuckDB is not installed.
        """
        duckdb = _imported("duckdb")
        return self.arrow(table, **how).map(duckdb.connect().from_arrow)

    def sql(self, query: str, *, as_of: str | None = None) -> Result[pa.Table, LakeSyncError]:
        """Return the rows of a query in DuckDB's SQL; only what it needs of its tables is read.

        Args:
            query: it names tables as `tables` gives them.
            as_of: a moment for all of them, as of `arrow`.
        """
        from lakesync.analysis.lake_queries import run

        return _result(lambda: run(self._lake, query, _moment(as_of)))

    def _read(
        self, table: str, columns: Sequence[str] | None, as_of: str | None, *, all_columns: bool
    ) -> pa.Table:
        if table not in self._lake.names():
            known = ", ".join(self._lake.names()) or "none yet"
            raise NotFound(f"there is no table {table} in the lake; tables: {known}")
        from lakesync.analysis.lake import Needed

        moment = _moment(as_of)
        needed = None
        if columns is not None:
            there = self._lake.schema(table, moment, all_columns=all_columns).names
            if unknown := sorted(set(columns) - set(there)):
                raise UsageFault(f"{table} has no column {unknown[0]}; it has {', '.join(there)}")
            needed = Needed(frozenset(columns))
        rows = self._lake.read(table, moment, all_columns=all_columns, needed=needed)
        return rows if columns is None else rows.select(list(columns))


def _check_installed() -> None:
    """Import what every reading of the lake needs.

    Raises:
        ImportError: the extra is not installed; says how to install it.
    """
    for name in _NEEDED:
        _imported(name)


def _imported(name: str) -> Any:
    """Import a library of the extra; call it before the lake is read.

    Raises:
        ImportError: it is not installed; says how to install it.
    """
    try:
        return import_module(name)
    except ModuleNotFoundError as exc:
        if exc.name is not None and exc.name.partition(".")[0] != name:
            raise  # it is installed, and lacks something of its own
        raise ImportError(
            f"lakesync.analysis needs {name}: run {how_to_install('analysis')}"
        ) from None


def _moment(text: str | None) -> Any:
    return None if text is None else read_as_of(text, "as_of")


def _result(act: Callable[[], T]) -> Result[T, LakeSyncError]:
    """Return what is made, or why not; a bug is raised."""
    try:
        return Ok(act())
    except LakeSyncError as error:
        return Err(error)
    except UsageFault as exc:
        return _failed(ValidationFailed(str(exc)), exc)
    except Exception as exc:
        if not type(exc).__module__.startswith("botocore"):
            raise
        fault = fault_of(exc)
        kinds: dict[int, type[LakeSyncError]] = {LATER: Unavailable, NO_ACCESS: Forbidden}
        return _failed(kinds.get(fault.exit_code, ValidationFailed)(fault.sentence), exc)


def _failed(error: LakeSyncError, cause: Exception) -> Err[LakeSyncError]:
    error.__cause__ = cause
    return Err(error)


__all__ = ["OpenedLake", "open_lake", "open_shared"]

DOORS: Final = ("connection", "lake", "lake_queries", "past", "shared_lake")
"""What other folders may import, beside the names of this module."""
