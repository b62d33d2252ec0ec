"""What the demo prints: each step with its time; plain lines where there is no terminal."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.status import Status


class Step:
    """One step while it is at work."""

    def __init__(self, sentence: str, status: Status | None) -> None:
        self._sentence = sentence
        self._status = status
        self.result = ""
        """What came of it, in a few words; shown when it is done."""

    def show(self, progress: str) -> None:
        """Say how far it is, on a terminal."""
        if self._status is not None:
            self._status.update(f"{self._sentence}  [dim]{progress}[/]")


class Screen:
    """Where the demo prints."""

    def __init__(self, console: Console | None = None) -> None:
        terminal = console or Console(highlight=False)
        # Without a terminal nothing is cut to the 80 columns that nobody looks at.
        self.console = terminal if terminal.is_terminal else Console(
            file=terminal.file, width=120, highlight=False, color_system=None
        )  # fmt: skip
        self._started = time.monotonic()

    @property
    def elapsed_s(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._started

    def title(self, sentence: str) -> None:
        """Print the headline."""
        self.console.print(Text(sentence, style="bold"))

    def line(self, sentence: str = "") -> None:
        """Print a line as it is: it may be pasted."""
        self.console.print(Text(sentence), soft_wrap=True)

    @contextlib.contextmanager
    def step(self, sentence: str) -> Iterator[Step]:
        """Do one step of the story: its sentence, what came of it, how long it took."""
        started = time.monotonic()
        with contextlib.ExitStack() as stack:
            status = None
            if self.console.is_terminal:
                status = stack.enter_context(self.console.status(sentence))
            step = Step(sentence, status)
            yield step
        seconds = f"{time.monotonic() - started:6.1f} s"
        text = Text.assemble((seconds, "dim"), "  ", sentence)
        if step.result:
            text.append(f": {step.result}", style="green" if self.console.is_terminal else "")
        self.console.print(text, soft_wrap=True)

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """Print a table; numbers to the right."""
        table = Table(
            title=Text(title, style="bold"),
            title_justify="left",
            box=box.SIMPLE_HEAD,
            show_edge=False,
        )
        for place, name in enumerate(columns):
            numbers = all(isinstance(row[place], int) for row in rows)
            table.add_column(name, justify="right" if numbers else "left")
        for row in rows:
            table.add_row(*(Text(_shown(value)) for value in row))
        self.console.print()
        self.console.print(table)
        self.console.print()


def _shown(value: object) -> str:
    if value is None:
        return "·"
    return f"{value:,}" if isinstance(value, int) else str(value)
