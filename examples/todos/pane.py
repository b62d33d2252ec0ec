"""One person's window: the list, how syncing goes, and a line to write in."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING, ClassVar, Final

from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.widgets import DataTable, Input, Label

from examples.todos.todos import ALL, TITLE_LETTERS_MAX, Todo, TodoList

if TYPE_CHECKING:
    from textual.app import ComposeResult

    from lakesync.client import AsyncClient, ClientStatus, LostWrite

LOOK_EVERY_S: Final = 0.5
"""How often to look for news while no socket tells of them."""


class Pane(Vertical):
    """The window of one person."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("space", "tick", "done"),
        Binding("e", "edit", "edit"),
        Binding("d", "remove", "delete"),
        Binding("o", "network", "on/offline"),
    ]

    def __init__(self, client: AsyncClient, person: str) -> None:
        super().__init__(id=f"pane-{person}")
        self.todos = TodoList(client, person)
        self.is_online = True
        self._client = client
        self._rows: list[Todo] = []
        self._edited: Todo | None = None

    def compose(self) -> ComposeResult:
        """Lay out the window."""
        yield Label(id="status")
        yield DataTable(cursor_type="row", show_header=False)
        yield Input(
            placeholder="What is to do?", max_length=TITLE_LETTERS_MAX, select_on_focus=False
        )

    async def on_mount(self) -> None:
        """Begin to show what is there, and to sync."""
        self.table.add_columns("done", "title", "by")
        await self.todos.prepare()
        self._conflicts = self._client.on_conflict(self._lost)
        self.run_worker(self._show_todos())
        self.run_worker(self._show_status())
        self._loop = self._client.connect(every_s=LOOK_EVERY_S)

    async def on_unmount(self) -> None:
        """Stop syncing and close the file; nothing is lost, edits wait in it."""
        await self._client.close()

    @property
    def table(self) -> DataTable[str]:
        """The list on the screen."""
        return self.query_one(DataTable)

    @property
    def chosen(self) -> Todo | None:
        """The todo under the cursor."""
        row = self.table.cursor_row
        return self._rows[row] if 0 <= row < len(self._rows) else None

    async def _show_todos(self) -> None:
        async for rows in self._client.watch(ALL, as_=Todo):
            chosen = self.chosen
            self._rows = rows
            self.table.clear()
            for todo in rows:
                mark = "✔" if todo.done else "·"
                self.table.add_row(mark, todo.title or "(untitled)", todo.added_by or "")
            ids = [todo.id for todo in rows]
            if chosen is not None and chosen.id in ids:
                self.table.move_cursor(row=ids.index(chosen.id))

    async def _show_status(self) -> None:
        async for status in self._client.watch_status():
            self._show(status)

    def _show(self, status: ClientStatus) -> None:
        words = ["online" if self.is_online else "offline"]
        if status.pending:
            words.append(f"{status.pending} to send")
        if status.quarantined:
            words.append(f"{status.quarantined} refused")
        if self.is_online and status.last_error is not None:
            words.append(str(status.last_error))
        self.query_one("#status", Label).update(f"{self.todos.person}: {', '.join(words)}")

    def _lost(self, lost: LostWrite) -> None:
        sentence = f"{lost.other_client} wrote {lost.other!r} over your {lost.own!r}"
        if lost.won:
            sentence = f"you wrote {lost.own!r} over {lost.other!r} of {lost.other_client}"
        self.app.notify(sentence, title=self.todos.person)

    async def on_input_submitted(self, event: Input.Submitted) -> None:
        """Add what was written, or give the edited todo its new title."""
        title, edited = event.value.strip(), self._edited
        event.input.value, self._edited = "", None
        event.input.placeholder = "What is to do?"
        if edited is not None and title:
            await self.todos.rename(edited, title)
        elif title:
            await self.todos.add(title, datetime.now(UTC).isoformat())
        self.table.focus()

    async def action_tick(self) -> None:
        """Tick the chosen todo off, or on again."""
        if self.chosen is not None:
            await self.todos.tick(self.chosen)

    async def action_remove(self) -> None:
        """Delete the chosen todo."""
        if self.chosen is not None:
            await self.todos.remove(self.chosen)

    def action_edit(self) -> None:
        """Write another title for the chosen todo."""
        if self.chosen is not None:
            self._edited = self.chosen
            line = self.query_one(Input)
            line.value, line.placeholder = self.chosen.title or "", "The new title"
            line.action_end()
            line.focus()

    async def action_network(self) -> None:
        """Go offline, as on a train, or online again."""
        self.is_online = not self.is_online
        await asyncio.to_thread(self._loop.start if self.is_online else self._loop.stop)
        self._show(await self._client.status)
