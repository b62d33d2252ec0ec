"""What the app keeps: the table `todos`, and what a person does with it."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from lakesync.client import AsyncClient

COLUMNS: Final = {"title": "string", "done": "boolean", "added_by": "string", "added_at": "string"}
ALL: Final = "SELECT * FROM todos ORDER BY done, added_at, _row_id"
TITLE_LETTERS_MAX: Final = 200


@dataclass(frozen=True)
class Todo:
    """One thing to do."""

    _row_id: str
    title: str | None
    done: bool | None
    added_by: str | None
    added_at: str | None

    @property
    def id(self) -> str:
        """The row's id."""
        return self._row_id


class TodoList:
    """The list of one person on one device."""

    def __init__(self, client: AsyncClient, person: str) -> None:
        self.client = client
        self.person = person

    async def prepare(self) -> None:
        """Make the table, before anything has come from others. Safe to repeat."""
        (await self.client.declare("todos", COLUMNS)).unwrap()

    async def add(self, title: str, now: str) -> str:
        """Add a todo at the list's end; returns its row id."""
        row_id = str(uuid.uuid4())
        todo = {"title": title, "done": False, "added_by": self.person, "added_at": now}
        (await self.client.insert("todos", row_id, todo)).unwrap()
        return row_id

    async def rename(self, todo: Todo, title: str) -> None:
        """Write a title, and nothing else of the row."""
        (await self.client.update("todos", todo.id, {"title": title})).unwrap()

    async def tick(self, todo: Todo) -> None:
        """Tick a todo off, or on again."""
        (await self.client.update("todos", todo.id, {"done": not todo.done})).unwrap()

    async def remove(self, todo: Todo) -> None:
        """Delete a todo."""
        (await self.client.delete("todos", todo.id)).unwrap()
