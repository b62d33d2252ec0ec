"""Start, find and stop the AWS emulator.

Tests: `with start_emulator() as emulator: boto3.client("s3", **emulator.client_options())`.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import shutil
import signal
import tempfile
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING

from tools.local_stack import paths
from tools.local_stack.clients import REGION, ClientOptions, client_options
from tools.local_stack.ports import HOST, choose_port, wait_until
from tools.local_stack.processes import (
    command_line,
    end_group,
    is_running,
    read_record,
    start_detached,
    write_record,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

_MARK = "tools.local_stack.emulator"
_READY_SECONDS = 30.0
# Each concurrent invocation is a process of 40 MB; the emulator itself sets no bound.
_CONCURRENT_INVOCATIONS = 20
# Programs are found, and jars are fetched for the first Glue run if nobody did so before.
_KEPT_VARIABLES = (
    *("PATH", "HOME", "LANG", "JAVA_HOME"),
    *("HTTPS_PROXY", "https_proxy", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"),
)


@dataclass(frozen=True)
class Emulator:
    """A running emulator, and how to reach it."""

    port: int
    pid: int
    folder: Path
    region: str = REGION

    @property
    def endpoint(self) -> str:
        """The URL of every AWS service."""
        return f"http://{HOST}:{self.port}"

    def client_options(self) -> ClientOptions:
        """Keyword arguments for `boto3.client` and `boto3.resource`."""
        return client_options(self.endpoint)

    def environment(self) -> dict[str, str]:
        """Environment variables that lead any AWS tool to this emulator."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_DEFAULT_REGION": self.region,
            "AWS_REGION": self.region,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_EC2_METADATA_DISABLED": "true",
            "NO_PROXY": f"{HOST},localhost",
            "no_proxy": f"{HOST},localhost",
        }

    def is_healthy(self) -> bool:
        """Whether it answers."""
        # Not urllib, which would ask a proxy for 127.0.0.1 where one is set.
        connection = http.client.HTTPConnection(HOST, self.port, timeout=5)
        try:
            connection.request("GET", "/_ministack/health")
            return connection.getresponse().status == HTTPStatus.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()


@contextlib.contextmanager
def start_emulator(
    port: int = 0, *, folder: Path | None = None, enforce_iam: bool = False
) -> Iterator[Emulator]:
    """An emulator with nothing in it, for as long as the block runs; port 0 is any free one."""
    own = Path(tempfile.mkdtemp(prefix="lakesync-emulator-")) if folder is None else folder
    emulator = launch_emulator(port, folder=own, enforce_iam=enforce_iam)
    try:
        yield emulator
    finally:
        stop_emulator(own)
        if folder is None:
            shutil.rmtree(own, ignore_errors=True)


def launch_emulator(port: int, *, folder: Path, enforce_iam: bool) -> Emulator:
    """Start an emulator that stays, and record it in `folder`; a free port replaces a busy one.

    Raises:
        LocalStackError: it did not come up; the sentence names its log.
    """
    chosen = choose_port(port)
    log = folder / "logs" / "emulator.log"
    (folder / "tmp").mkdir(parents=True, exist_ok=True)
    process = start_detached(
        [str(paths.EMULATOR_PYTHON), "-m", _MARK],
        environment=_environment(chosen, folder, enforce_iam=enforce_iam),
        folder=paths.ROOT,
        log=log,
    )
    emulator = Emulator(port=chosen, pid=process.pid, folder=folder)
    write_record(_record(folder), {"port": chosen, "pid": process.pid, "region": REGION})
    try:
        wait_until(
            emulator.is_healthy,
            alive=lambda: process.poll() is None,
            what="the AWS emulator",
            log=str(log),
            seconds=_READY_SECONDS,
        )
    except BaseException:
        stop_emulator(folder)
        raise
    return emulator


def find_emulator(folder: Path) -> Emulator | None:
    """The emulator recorded in `folder`, if it is still alive and answers."""
    record = read_record(_record(folder))
    if not record or not is_running(record["pid"], _MARK):
        return None
    emulator = Emulator(port=record["port"], pid=record["pid"], folder=folder)
    return emulator if emulator.is_healthy() else None


def stop_emulator(folder: Path) -> bool:
    """Stop the emulator recorded in `folder` and remove what it left; whether there was one."""
    record = read_record(_record(folder))
    if record:
        end_group(record["pid"], _MARK)
    _end_glue_runs(folder)
    # Its functions' unpacked code, which it leaves behind.
    shutil.rmtree(folder / "tmp", ignore_errors=True)
    _record(folder).unlink(missing_ok=True)
    return bool(record)


def _record(folder: Path) -> Path:
    return folder / "emulator.json"


def _end_glue_runs(folder: Path) -> None:
    for pid_file in (folder / "glue").glob("*/pid"):
        with contextlib.suppress(OSError, ValueError):
            pid = int(pid_file.read_text())
            if "spark" in command_line(pid):
                os.killpg(pid, signal.SIGKILL)
    shutil.rmtree(folder / "glue", ignore_errors=True)


def _environment(port: int, folder: Path, *, enforce_iam: bool) -> dict[str, str]:
    """Little of ours: functions inherit this, and on AWS they see nothing of this machine."""
    kept = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
    return {
        **kept,
        "TMPDIR": str(folder / "tmp"),
        "PYTHONUNBUFFERED": "1",
        "LAKESYNC_STACK_FOLDER": str(folder),
        "BIND_HOST": HOST,
        "GATEWAY_PORT": str(port),
        "MINISTACK_REGION": REGION,
        "SFTP_ENABLED": "0",
        "IOT_MTLS_ENABLED": "0",
        "AUTH": "true" if enforce_iam else "false",
        "LAMBDA_ACCOUNT_CONCURRENCY": str(_CONCURRENT_INVOCATIONS),
        "AWS_DEFAULT_REGION": REGION,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
    }
