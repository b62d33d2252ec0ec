"""The BigQuery emulator for one machine: in memory, with one project, in an environment of its own.

Tests ask for the fixture `bigquery`. Its client finds it by the library's own setting,
``BIGQUERY_EMULATOR_HOST``.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tools.local_stack import paths
from tools.local_stack.errors import LocalStackError
from tools.local_stack.ports import HOST, choose_port
from tools.local_stack.servers import serving

if TYPE_CHECKING:
    from collections.abc import Iterator

PROJECT = "lakesync-test"
_PROGRAM = "tools.local_stack.bigquery_emulator"
_EXTENSION = "import duckdb_extensions; duckdb_extensions.import_extension('spatial')"


@dataclass(frozen=True)
class BigQueryServer:
    """A running emulator."""

    port: int
    project: str = PROJECT

    @property
    def endpoint(self) -> str:
        """What ``BIGQUERY_EMULATOR_HOST`` is set to."""
        return f"http://{HOST}:{self.port}"


@contextlib.contextmanager
def start_bigquery() -> Iterator[BigQueryServer]:
    """A BigQuery emulator for as long as the block runs.

    Raises:
        LocalStackError: its environment is missing, or it does not start.
    """
    if not paths.BIGQUERY_PYTHON.exists():
        raise LocalStackError("run `tools/bootstrap.sh bigquery`: its emulator is missing.")
    # DuckDB looks for its extensions below HOME; they are copied there, not fetched.
    home = paths.LOCAL / "bigquery"
    home.mkdir(parents=True, exist_ok=True)
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(home), "LC_ALL": "C.UTF-8", "TZ": "UTC"}
    answer = subprocess.run(
        [str(paths.BIGQUERY_PYTHON), "-c", _EXTENSION],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if answer.returncode:
        raise LocalStackError(f"run `make clean`, then this again: {answer.stderr.strip()[-300:]}")
    server = BigQueryServer(choose_port(0))
    log = paths.LOCAL / f"bigquery-{os.getpid()}.log"
    with tempfile.TemporaryDirectory(prefix="lakesync-bigquery-") as folder, serving(
        [
            str(paths.BIGQUERY_PYTHON), "-m", _PROGRAM, "start", "--rest-port", str(server.port),
            "--grpc-port", "0", "--project", server.project, "--log-level", "error",
        ],
        server.port, what="bigquery", mark=_PROGRAM, end_by=signal.SIGKILL,
        environment=environment | {"PYTHONPATH": str(paths.ROOT)}, folder=Path(folder), log=log,
    ):  # fmt: skip
        yield server
    log.unlink(missing_ok=True)
