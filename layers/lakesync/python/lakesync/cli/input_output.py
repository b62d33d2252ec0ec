"""What commands read and write: files, tables for people, JSON for programs.

Files are UTF-8, with or without a byte order mark. Results go to standard output, notes and
progress to standard error. Without a terminal there are no colours, no progress, and long values
are not cut. Rows are written atomically to a file, in the format that its name states.
"""

from __future__ import annotations

import csv
import json
import os
import sys
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeAlias

from lakesync.analysis.connection import UsageFault

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
