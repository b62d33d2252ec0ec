"""What commands read and write: files, tables for people, JSON for programs, faults and exit codes.

Files are UTF-8, with or without a byte order mark. Results go to standard output, notes and
progress to standard error. Without a terminal there are no colours, no progress, and long values
are not cut. Rows are written atomically to a file, in the format that its name states.

An error becomes one sentence and an exit code: no traceback, and no secret. Exit codes: 0 done ·
1 refused or failed · 2 wrong usage · 3 temporary, try again · 4 no valid token or credentials ·
130 interrupted. One fault has one code, whichever command meets it: ``docs/operations.md`` lists
them.
"""

from __future__ import annotations

import csv
import json
import os
import sys
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeAlias

from lakesync.errors import (
    AuthFailed,
    CursorExpired,
    Forbidden,
    InvalidInput,
    LakeSyncError,
    Retry,
    Revoked,
)
from lakesync.errors import Fault as NamedFault

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    import pyarrow as pa
    from rich.console import Console

# --- files that are given -------------------------------------------------------------------------


def read_json(file: str) -> object:
    """Return the value in a JSON file; ``-`` is standard input."""
    try:
        return json_of(read_text(file))
    except ValueError as exc:
        raise UsageFault(f"{file} is not JSON: {exc}") from exc


def read_yaml(file: str) -> object:
    """Return the value in a YAML or JSON file; ``-`` is standard input."""
    import yaml

    try:
        return yaml.safe_load(read_text(file))
    except yaml.YAMLError as exc:
        raise UsageFault(f"{file} is not YAML: {exc}") from exc


def read_objects(file: str) -> list[object]:
    return objects_in(read_text(file), file)


def objects_in(text: str, name: str) -> list[object]:
    """Return the JSON values of a text: one, or one per line; ``name`` is what was read."""
    try:
        return [json_of(text)]
    except ValueError:
        lines = enumerate(text.split("\n"), start=1)  # a value may hold other line ends
    objects = []
    for number, line in lines:
        try:
            objects += [json_of(line)] if line.strip() else []
        except ValueError as exc:
            raise UsageFault(f"{name}, line {number}: not JSON: {exc}") from exc
    return objects


def json_of(text: str) -> object:
    """Return the value of JSON text; NaN and Infinity, which Python would read, are none."""
    return json.loads(text, parse_constant=_no_constant)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON: write null, or text in quotes")


def read_text(file: str) -> str:
    """Return the text of a UTF-8 file; ``-`` is standard input."""
    try:
        raw = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
        return raw.decode("utf-8-sig")  # whatever the system's own encoding is
    except UnicodeDecodeError as exc:
        raise UsageFault(f"{file} is not UTF-8 text: {exc.reason}") from exc


# --- output ---------------------------------------------------------------------------------------


Cell: TypeAlias = "str | Callable[[dict[str, Any]], object]"
"""How a column is read of an object: by its key, or by a function."""
PLAIN_WIDTH: Final = 100_000
"""The width of a line without a terminal: nothing is cut or wrapped."""


class Output:
    """Prints one command's output."""

    def __init__(self, *, json_lines: bool) -> None:
        self.json_lines = json_lines

    def json(self, value: object) -> None:
        sys.stdout.write(json.dumps(value, ensure_ascii=False, default=str) + "\n")

    def text(self, sentence: str) -> None:
        sys.stdout.write(sentence + "\n")

    def note(self, sentence: str) -> None:
        """Print a note on standard error, which programs that read the answer do not see."""
        sys.stderr.write(sentence + "\n")

    def answer(self, value: Mapping[str, object], sentence: str) -> None:
        if self.json_lines:
            self.json(value)
        else:
            self.text(sentence)

    def document(self, value: object) -> None:
        if self.json_lines:
            self.json(value)
        else:
            self.text(json.dumps(value, indent=2, ensure_ascii=False))

    def listing(
        self,
        items: Iterable[dict[str, Any]],
        columns: Mapping[str, Cell],
        title: str | None = None,
        *,
        empty: str = "",
    ) -> bool:
        """Print objects: a line each, or a table for people; return whether people read it."""
        if self.json_lines:
            for each in items:
                self.json(each)
            return False
        rows = [
            [each[of] if isinstance(of, str) else of(each) for of in columns.values()]
            for each in items
        ]
        self.table(list(columns), rows, title, empty=empty)
        return True

    def table(
        self,
        columns: Sequence[str],
        rows: Iterable[Sequence[object]],
        title: str | None = None,
        *,
        empty: str = "",
    ) -> None:
        """Print a table for people: numbers aligned right, absent values as a dot.

        ``empty`` is printed instead if there are no rows.
        """
        from rich import box
        from rich.table import Table
        from rich.text import Text

        cells = [tuple(row) for row in rows]
        if empty and not cells:
            self.text(empty)
            return
        table = Table(box=box.SIMPLE_HEAD, show_edge=False)
        for index, name in enumerate(columns):
            numbers = all(isinstance(row[index], int | float | None) for row in cells)
            table.add_column(Text(name), justify="right" if numbers else "left", overflow="fold")
        for row in cells:
            # As Text, because a value may contain rich's markup.
            table.add_row(*(Text(shown(value)) for value in row))
        console = self._console()
        if title:
            self.text(title)  # rich would wrap it to the table's width
        if sum(len(name) + 2 for name in columns) > console.width:
            self._records(columns, cells)  # not even the names would fit
        else:
            console.print(table)

    def _records(self, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """Print rows one below the other: their columns do not fit beside each other."""
        wide = max(map(len, columns))
        for number, row in enumerate(rows, start=1):
            self.text(f"── {number} ──")
            for name, value in zip(columns, row, strict=True):
                self.text(f"{name:<{wide}}  {shown(value)}")

    def progress(self, sentence: str) -> AbstractContextManager[object]:
        """Show on a terminal that work is in progress, while the block runs."""
        console = self._console(stderr=True)
        if self.json_lines or not console.is_terminal:
            return nullcontext()
        return console.status(sentence)

    @staticmethod
    def _console(*, stderr: bool = False) -> Console:
        from rich.console import Console

        stream = sys.stderr if stderr else sys.stdout
        width = None if stream.isatty() else PLAIN_WIDTH
        return Console(file=stream, width=width, highlight=False)


def shown(value: object) -> str:
    if value is None:
        return "·"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False, default=str)
    # Control characters in data must not reach the terminal.
    return "".join(char if char.isprintable() else " " for char in str(value))


@contextmanager
def quiet_pipe() -> Iterator[None]:
    """End quietly when the reader of the output (``head``) closes it."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        # Otherwise Python would report the error again when it closes standard output.
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115 - ends with us


# --- files of rows --------------------------------------------------------------------------------


def check_format(path: Path) -> None:
    """Check that rows can be written to a file, before they are read."""
    if path.suffix not in _WRITERS:
        known = ", ".join(_WRITERS)
        raise UsageFault(f"{path}: the name must end in one of {known}, which is the format")
    if not path.parent.is_dir():
        raise UsageFault(f"{path.parent} is not a folder: create it first")


def write_rows(rows: pa.RecordBatchReader, path: Path) -> None:
    """Write rows; the former file is replaced once all of them are written."""
    unfinished = path.with_name(f".{path.name}.unfinished")
    try:
        _WRITERS[path.suffix](rows, unfinished)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def _csv(rows: pa.RecordBatchReader, path: Path) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(rows.schema.names)
        for row in _dicts(rows):
            writer.writerow("" if value is None else _cell(value) for value in row.values())


def _cell(value: object) -> object:
    nested = isinstance(value, dict | list | tuple)
    return json.dumps(value, ensure_ascii=False, default=str) if nested else value


def _json(rows: pa.RecordBatchReader, path: Path) -> None:
    with path.open("w", encoding="utf-8") as file:
        for row in _dicts(rows):
            file.write(json.dumps(row, ensure_ascii=False, default=str) + "\n")


def _parquet(rows: pa.RecordBatchReader, path: Path) -> None:
    from pyarrow import parquet

    with parquet.ParquetWriter(path, rows.schema, compression="zstd") as writer:
        for batch in rows:
            writer.write_batch(batch)


def _arrow(rows: pa.RecordBatchReader, path: Path) -> None:
    from pyarrow import ipc

    with ipc.new_file(str(path), rows.schema) as writer:
        for batch in rows:
            writer.write_batch(batch)


def _dicts(rows: pa.RecordBatchReader) -> Iterator[Mapping[str, Any]]:
    for batch in rows:
        columns = [column.to_pylist() for column in batch.columns]
        for row in zip(*columns, strict=True):
            # Not as dictionaries of Arrow's: two columns may have one name.
            yield dict(zip(rows.schema.names, row, strict=True))


_WRITERS: Final[Mapping[str, Callable[[pa.RecordBatchReader, Path], None]]] = {
    ".csv": _csv,
    ".json": _json,
    ".parquet": _parquet,
    ".arrow": _arrow,
}


# --- faults and exit codes ------------------------------------------------------------------------


FAILED: Final = 1
USAGE: Final = 2
LATER: Final = 3
NO_ACCESS: Final = 4
INTERRUPTED: Final = 130

_CREDENTIALS: Final = (
    "AWS credentials are missing or void: set AWS_PROFILE, or AWS_ACCESS_KEY_ID and "
    "AWS_SECRET_ACCESS_KEY"
)
_UNREACHABLE: Final = (
    "AWS cannot be reached: check the network; a local stack is started by `make up`"
)
_VOID_CREDENTIALS: Final = frozenset(
    {
        "ExpiredToken",
        "ExpiredTokenException",
        "InvalidAccessKeyId",
        "InvalidClientTokenId",
        "SignatureDoesNotMatch",
        "UnrecognizedClientException",
    }
)
_NO_CREDENTIALS: Final = frozenset(
    {"NoCredentialsError", "PartialCredentialsError", "TokenRetrievalError"}
)
_DENIED: Final = frozenset({"AccessDenied", "AccessDeniedException", "403"})
_BUSY: Final = frozenset(
    {
        "InternalError",
        "InternalFailure",
        "InternalServerError",
        "LimitExceededException",
        "ProvisionedThroughputExceededException",
        "RequestLimitExceeded",
        "ServiceUnavailable",
        "SlowDown",
        "Throttling",
        "ThrottlingException",
        "TooManyRequestsException",
    }
)
_CAUSES_MAX: Final = 8
"""Causes of an error that are looked at."""


class UsageFault(Exception):
    """The command line is not valid or incomplete; the text says what to do."""


@dataclass(frozen=True)
class Fault:
    """How a failed command ends."""

    sentence: str
    code: str
    exit_code: int
    faults: tuple[NamedFault, ...] = ()
    """Those of a declaration, each with its path."""


def fault_of(error: BaseException) -> Fault:
    """Return how a command ends that raised ``error``."""
    if isinstance(error, UsageFault):
        return Fault(str(error), "USAGE", USAGE)
    if isinstance(error, KeyboardInterrupt):
        sentence = "interrupted; what was answered so far is done, the rest may be run again"
        return Fault(sentence, "INTERRUPTED", INTERRUPTED)
    if isinstance(error, LakeSyncError):
        return _of_access(error) or _of_lakesync(error)
    if type(error).__module__.startswith("botocore"):
        return _of_aws(error)
    if isinstance(error, ModuleNotFoundError) and _is_extra(error.name or ""):
        from lakesync.installing import how_to_install

        sentence = f"the command line needs {error.name}: run {how_to_install('cli')}"
        return Fault(sentence, "USAGE", USAGE)
    if isinstance(error, OSError) and "AWS Error " in str(error):
        return _of_arrow(str(error))
    if isinstance(error, OSError):
        name = f"{error.filename}: " if error.filename else ""
        return Fault(f"{name}{error.strerror or error}", "OS_ERROR", FAILED)
    return Fault(
        f"a bug in lakesync ({type(error).__name__}); set LAKESYNC_DEBUG=1 to see where, and "
        "report it",
        "INTERNAL_ERROR",
        FAILED,
    )


def _is_extra(module: str) -> bool:
    return bool(module) and module.partition(".")[0] != "lakesync"


def is_bug_to_show(error: BaseException) -> bool:
    """Return whether the traceback is to be shown: a bug, with LAKESYNC_DEBUG set."""
    known = isinstance(
        error, LakeSyncError | UsageFault | OSError | KeyboardInterrupt | ModuleNotFoundError
    )
    return not known and bool(os.environ.get("LAKESYNC_DEBUG"))


def as_json(fault: Fault) -> str:
    faults = [{"path": path, "error": message} for path, message in fault.faults]
    shown = {"error": fault.sentence, "code": fault.code} | ({"faults": faults} if faults else {})
    return json.dumps(shown, ensure_ascii=False)


def fault_line(fault: Fault, *, for_programs: bool) -> str:
    return as_json(fault) if for_programs else f"error: {fault.sentence}"


def _of_access(error: LakeSyncError) -> Fault | None:
    """Return the fault of missing or void AWS credentials, where they caused an error of ours."""
    cause: BaseException | None = error
    for _ in range(_CAUSES_MAX):
        cause = cause.__cause__ if cause else None
        code = _code_of(cause)
        if code in _VOID_CREDENTIALS:
            return Fault(_CREDENTIALS, code, NO_ACCESS)
        if code in _DENIED:
            return Fault(f"AWS does not allow it to these credentials: {error}", code, NO_ACCESS)
        if cause is not None and type(cause).__name__ in _NO_CREDENTIALS:
            return _of_aws(cause)
    return None


def _code_of(cause: BaseException | None) -> str:
    """Return what AWS calls a failure: in an error of botocore, or of our caller of DynamoDB."""
    response = getattr(cause, "response", None)
    if isinstance(response, dict):
        return str(response.get("Error", {}).get("Code", ""))
    return str(getattr(cause, "kind", ""))


def _of_arrow(text: str) -> Fault:
    """Decide what Arrow reports of S3 by its name for it: it carries no more than a sentence."""
    name = text.partition("AWS Error ")[2].partition(" ")[0]
    if name in {"ACCESS_DENIED", "FORBIDDEN"}:
        sentence = f"AWS does not allow it to these credentials: {text.splitlines()[0]}"
        return Fault(sentence, "AccessDenied", NO_ACCESS)
    if name in {"INVALID_ACCESS_KEY_ID", "SIGNATURE_DOES_NOT_MATCH", "EXPIRED_TOKEN"}:
        return Fault(_CREDENTIALS, name, NO_ACCESS)
    if name in {"NETWORK_CONNECTION", "SLOW_DOWN", "SERVICE_UNAVAILABLE", "INTERNAL_FAILURE"}:
        return Fault(_UNREACHABLE, "UNREACHABLE", LATER)
    return Fault(f"AWS refused it: {text.splitlines()[0]}", "AWS_ERROR", FAILED)


def _of_lakesync(error: LakeSyncError) -> Fault:
    if isinstance(error, AuthFailed | Forbidden | Revoked):
        exit_code = NO_ACCESS
    elif error.retry is Retry.LATER:
        exit_code = LATER
    else:
        exit_code = FAILED
    field = f" ({error.field})" if error.field and error.field not in error.message else ""
    hint = "; pull again from 0: --since 0" if isinstance(error, CursorExpired) else ""
    faults = error.faults if isinstance(error, InvalidInput) else ()
    return Fault(f"{error.message}{field}{hint}", error.code, exit_code, faults)


def _of_aws(error: BaseException) -> Fault:
    """Decide by the name, not the class: importing botocore takes longer than most commands."""
    name = type(error).__name__
    response = getattr(error, "response", None)
    if isinstance(response, dict):
        code = str(response.get("Error", {}).get("Code", ""))
        text = str(response.get("Error", {}).get("Message", "")).rstrip(".")
        operation = getattr(error, "operation_name", "a call")
        if code in _VOID_CREDENTIALS:
            return Fault(_CREDENTIALS, code, NO_ACCESS)
        if code in _DENIED:
            sentence = f"AWS does not allow {operation} to these credentials: {text}"
            return Fault(sentence, code, NO_ACCESS)
        exit_code = LATER if code in _BUSY else FAILED
        return Fault(f"AWS refused {operation}: {text or code}", code or "AWS_ERROR", exit_code)
    if name in _NO_CREDENTIALS:
        return Fault(_CREDENTIALS, "NO_CREDENTIALS", NO_ACCESS)
    if name == "ProfileNotFound":
        return Fault(f"{error}: set AWS_PROFILE to one that exists", "NO_CREDENTIALS", NO_ACCESS)
    if name == "NoRegionError":
        sentence = "no AWS region is set: set AWS_REGION, or name it in the stack file"
        return Fault(sentence, "NO_REGION", USAGE)
    if "Connect" in name or "Timeout" in name:
        return Fault(_UNREACHABLE, "UNREACHABLE", LATER)
    return Fault(f"the request to AWS failed: {error}", "AWS_ERROR", FAILED)
