"""The app: the windows of everyone who uses this terminal, side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.app import App
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.widgets import Footer

from examples.todos.pane import Pane

if TYPE_CHECKING:
    from collections.abc import Mapping

    from textual.app import ComposeResult

    from lakesync.client import AsyncClient


class TodosApp(App[None]):
    """A window for each person."""

    TITLE = "Todos"
    CSS = """
    Pane { border: round $panel; }
    Pane:focus-within { border: round $accent; }
    DataTable { height: 1fr; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("n", "write", "new"),
        Binding("tab", "app.focus_next", "other window", show=False),
        Binding("q", "quit", "quit"),
    ]

    def __init__(self, clients: Mapping[str, AsyncClient]) -> None:
        super().__init__()
        self.panes = [Pane(client, person) for person, client in clients.items()]

    def compose(self) -> ComposeResult:
        """Put the windows side by side."""
        yield Horizontal(*self.panes)
        yield Footer()

    def action_write(self) -> None:
        """Write a new todo in the window that has the cursor."""
        pane = next((pane for pane in self.panes if pane.has_focus_within), self.panes[0])
        pane.query_one("Input").focus()
