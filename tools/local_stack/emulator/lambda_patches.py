"""Lambda as AWS runs it: whose packages a function sees, its errors' names, its speed."""

# The emulator's own names are private; names.py watches over them.
# ruff: noqa: SLF001

from __future__ import annotations

import hashlib
import re
import tempfile
import threading
import zipfile
from contextlib import AbstractContextManager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tools.local_stack import paths
from tools.local_stack.emulator.names import emulator_module

_EXCEPTION_LINE = re.compile(r"^([A-Za-z_][\w.<>]*)(?::\s.*)?$")
_TRACEBACK = "Traceback (most recent call last)"
# Seconds: until a first line, from line to line, and in all.
_LOG_WAITS = (0.003, 0.002, 0.25)


def run_functions_in_lambdas_own_environment() -> None:
    """AWS: a function sees its package, its layers and boto3, and nothing else.

    The emulator runs functions with its own interpreter, so that everything the emulator needs
    (pydantic, for one) can be imported by a function that forgot to package it.
    """
    runtime = emulator_module("ministack.core.lambda_runtime")
    original = runtime._detect_runtime_binary

    def detect(name: str) -> tuple[str, str]:
        binary, script = original(name)
        return (str(paths.LAMBDA_PYTHON) if name.startswith("python") else binary), script

    runtime._detect_runtime_binary = detect


def bound_versions_by_their_function() -> None:
    """AWS: a function's reserved concurrency is that of all its versions, whoever is called.

    The emulator looks for it at the version, where there is none, and so never stops an alias.
    """
    service = emulator_module("ministack.services.lambda_svc")
    original = service._reserved_concurrency

    def reserved(function: dict[str, Any], config: dict[str, Any]) -> int | None:
        whole = service._functions.get(config.get("FunctionName")) or function
        bound: int | None = original(whole, config)
        return bound

    service._reserved_concurrency = reserved


def take_a_parameters_number_for_a_queues_concurrency() -> None:
    """AWS: CloudFormation makes a number of a parameter's text where a property is one.

    The emulator leaves the text, and then hands no message of that queue to its function.
    """
    service = emulator_module("ministack.services.lambda_svc")
    original = service._sqs_esm_concurrency

    def concurrency(mapping: dict[str, Any], *rest: Any, **named: Any) -> int:
        scaling = mapping.get("ScalingConfig") or {}
        if "MaximumConcurrency" in scaling:
            scaling["MaximumConcurrency"] = int(scaling["MaximumConcurrency"])
        most: int = original(mapping, *rest, **named)
        return most

    service._sqs_esm_concurrency = concurrency


def name_errors_by_their_class() -> None:
    """AWS: `errorType` is the class of the exception that the handler raised.

    The emulator always says `Runtime.HandlerError`, which no `Retry` or `Catch` of a state machine
    that names an exception would match.
    """
    service = emulator_module("ministack.services.lambda_svc")
    original = service._execute_function_warm

    def execute(function: dict[str, Any], event: Any, request_id: str) -> dict[str, Any]:
        result: dict[str, Any] = original(function, event, request_id)
        body = result.get("body")
        if (
            result.get("error")
            and isinstance(body, dict)
            and body.get("errorType") == "Runtime.HandlerError"
        ):
            error_type, trace = exception_class(result.get("log") or "")
            if error_type:
                body.update(errorType=error_type, stackTrace=trace, requestId=request_id)
        return result

    service._execute_function_warm = execute


def exception_class(log: str) -> tuple[str, list[str]]:
    """The class that a log's last traceback names, without its module; the traceback's lines."""
    lines = log.rstrip().splitlines()
    start = max((i for i, line in enumerate(lines) if line.startswith(_TRACEBACK)), default=None)
    if start is None:
        return "", []
    trace = lines[start + 1 :]
    last = next((line for line in trace if line and not line.startswith((" ", "\t"))), "")
    match = _EXCEPTION_LINE.match(last)
    return (match[1].rsplit(".", 1)[-1] if match else ""), trace


def answer_without_waiting_for_logs() -> None:
    """AWS: a handler that logs nothing answers as fast as one that does.

    The emulator waits 50 ms for a first line of log after every silent invocation.
    """
    runtime = emulator_module("ministack.core.lambda_runtime")
    runtime.Worker._drain_stderr_bounded.__defaults__ = _LOG_WAITS


def unpack_packages_once() -> None:
    """AWS: each environment of a function sees the same packages, read-only, and soon.

    The emulator unpacks a function's code and layers, up to 250 MB, anew for each of its processes:
    that takes longer than to start it, and nothing else is served meanwhile.
    """
    runtime = emulator_module("ministack.core.lambda_runtime")
    runtime.zipfile = SimpleNamespace(**{**vars(zipfile), "ZipFile": SharedPackage})


class SharedPackage(AbstractContextManager["SharedPackage"]):
    """What the emulator takes for a `ZipFile` of a package: unpacked the first time that it is met.

    It is one folder for all, beside those of the functions' processes.
    """

    _turn = threading.Lock()

    def __init__(self, archive: str) -> None:
        self._archive = archive

    def __exit__(self, *_: object) -> None:
        """There is nothing to close."""

    def namelist(self) -> list[str]:
        """Names that might lead out of the folder: none, the standard library sees to that."""
        return []

    def extractall(self, target: str) -> None:
        """Let the empty folder `target` lead to the package."""
        with self._turn:
            shared = unpacked(Path(self._archive), Path(tempfile.gettempdir()) / "packages")
        Path(target).rmdir()
        Path(target).symlink_to(shared, target_is_directory=True)


def unpacked(archive: Path, folder: Path) -> Path:
    """Return the folder of an archive's files, unpacked once for all archives of equal contents."""
    with zipfile.ZipFile(archive) as opened:
        # The name, the size and the checksum of each file.
        contents = repr([(one.filename, one.file_size, one.CRC) for one in opened.infolist()])
        target = folder / hashlib.sha256(contents.encode()).hexdigest()
        if not target.exists():
            folder.mkdir(exist_ok=True)
            half_done = Path(tempfile.mkdtemp(dir=folder))
            opened.extractall(half_done)
            half_done.rename(target)
    return target
