"""The example app, as two people use it: keys are pressed, and the screen is read."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import TYPE_CHECKING

from textual.widgets import DataTable, Input, Label

from examples.todos.app import TodosApp
from lakesync.testing.memory_gateway import MemoryGateway
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from textual.pilot import Pilot

    from examples.todos.pane import Pane


async def until(pilot: Pilot[None], holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not holds():
            await pilot.pause(0.02)


def shown(pane: Pane) -> list[list[str]]:
    table = pane.query_one(DataTable)
    return [[str(cell) for cell in table.get_row_at(row)] for row in range(table.row_count)]


def status(pane: Pane) -> str:
    return str(pane.query_one("#status", Label).render())


async def write(pilot: Pilot[None], pane: Pane, title: str) -> None:
    pane.query_one(Input).focus()
    await pilot.press(*title, "enter")


async def used_by_two(folder: Path) -> None:
    with MemoryGateway(folder) as gateway:
        app = TodosApp({name: gateway.async_client(name) for name in ("ada", "bob")})
        async with app.run_test(size=(100, 30)) as pilot:
            ada, bob = app.panes
            await write(pilot, ada, "milk")
            await until(pilot, lambda: shown(bob) == [["·", "milk", "ada"]])

            bob.query_one(DataTable).focus()
            await pilot.press("o", "space", "e", *"!", "enter")
            await until(pilot, lambda: shown(bob) == [["✔", "milk!", "ada"]])
            assert status(bob) == "bob: offline, 2 to send"
            assert shown(ada) == [["·", "milk", "ada"]]

            await write(pilot, ada, "eggs")
            await pilot.press("o")
            bob.query_one(DataTable).focus()
            await pilot.press("o")
            ada.query_one(DataTable).focus()
            await pilot.press("o")
            both = [["·", "eggs", "ada"], ["✔", "milk!", "ada"]]
            await until(pilot, lambda: shown(ada) == both and shown(bob) == both)
            await until(pilot, lambda: status(bob) == "bob: online")

            ada.query_one(DataTable).move_cursor(row=0)
            await pilot.press("d")
            await until(pilot, lambda: len(shown(bob)) == 1)
            await pilot.press("q")
        assert len(gateway.rows("todos")) == 1


def test_two_users_share_a_list_online_and_offline(tmp_path: Path) -> None:
    asyncio.run(used_by_two(tmp_path))


async def both_rename(folder: Path) -> list[str]:
    with MemoryGateway(folder) as gateway:
        app = TodosApp({name: gateway.async_client(name) for name in ("ada", "bob")})
        async with app.run_test(size=(100, 30), notifications=True) as pilot:
            ada, bob = app.panes
            await write(pilot, ada, "milk")
            await until(pilot, lambda: shown(bob) == [["·", "milk", "ada"]])
            ada.query_one(DataTable).focus()
            await pilot.press("o", "e", *"!", "enter")
            await until(pilot, lambda: status(ada) == "ada: offline, 1 to send")
            bob.query_one(DataTable).focus()
            await pilot.press("e", *"?", "enter")
            await until(pilot, lambda: gateway.rows("todos")[ada_id(ada)]["title"] == "milk?")
            ada.query_one(DataTable).focus()
            await pilot.press("o")
            await until(pilot, lambda: bool(app._notifications))
            return [notification.message for notification in app._notifications]


def ada_id(pane: Pane) -> str:
    return pane._rows[0].id


def test_a_user_whose_change_was_overwritten_is_notified(tmp_path: Path) -> None:
    assert asyncio.run(both_rename(tmp_path)) == ["bob wrote 'milk?' over your 'milk!'"]


def test_the_example_without_a_token_names_the_missing_variable() -> None:
    command = [sys.executable, "-m", "examples.todos", "--url", "https://127.0.0.1:1"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False, env={})

    assert answer.returncode == 2
    assert "LAKESYNC_TOKEN" in answer.stderr
    assert "Traceback" not in answer.stderr
