"""The output of commands: tables for people, one JSON object per line for programs.

Results go to standard output, notes and progress to standard error. Without a terminal there are no
colours, no progress, and long values are not cut.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from rich.console import Console

PLAIN_WIDTH: Final = 100_000
"""The width of a line without a terminal: nothing is cut or wrapped."""


class Output:
    """Prints one command's output."""

    def __init__(self, *, json_lines: bool) -> None:
        self.json_lines = json_lines

    def json(self, value: object) -> None:
        """Print one object as one line."""
        sys.stdout.write(json.dumps(value, ensure_ascii=False, default=str) + "\n")

    def text(self, sentence: str) -> None:
        """Print a line of the answer."""
        sys.stdout.write(sentence + "\n")

    def note(self, sentence: str) -> None:
        """Print a note on standard error, which programs that read the answer do not see."""
        sys.stderr.write(sentence + "\n")

    def answer(self, value: Mapping[str, object], sentence: str) -> None:
        """Print the answer: the object for programs, the sentence for people."""
        if self.json_lines:
            self.json(value)
        else:
            self.text(sentence)

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
    """Return a value as a table shows it."""
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
