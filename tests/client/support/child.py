"""A process that edits until it is killed: ``child.py <file> <statements>``.

It prints the id of every edit that it was told is durable. With a number of statements it kills
itself before the next one, without a word to anyone.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, ClassVar

from lakesync.client import Client, MemoryTransport
from tests.support.hooked_connection import HookedConnection

if TYPE_CHECKING:
    import sqlite3


class _Mortal(HookedConnection):
    left: ClassVar[int] = int(sys.argv[2])

    def execute(self, *arguments: Any) -> sqlite3.Cursor:
        """Execute, or die."""
        _Mortal.left -= 1
        if _Mortal.left == 0:
            os._exit(7)
        return super().execute(*arguments)


def main() -> None:
    """Edit for ever."""
    nobody: Any = None
    transport = MemoryTransport("g1", nobody, nobody)
    client = Client(sys.argv[1], client_id="child", transport=transport, connection_class=_Mortal)
    turn = 0
    while True:
        turn += 1
        delta = client.insert("todos", f"t{turn % 50}", {"n": turn, f"c{turn % 7}": "x"}).unwrap()
        print(delta.delta_id, flush=True)  # noqa: T201 - what the parent reads
        with client.transaction() as edits:
            first = edits.update("todos", "pair", {"left": turn}).unwrap()
            second = edits.update("other", "pair", {"right": turn}).unwrap()
        print(first.delta_id, second.delta_id, sep="\n", flush=True)  # noqa: T201 - as above


main()
