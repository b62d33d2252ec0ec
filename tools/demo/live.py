"""Edits of one client on another's screen, over a WebSocket, with the milliseconds."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, Any, Final

from lakesync.client import SyncLoop
from lakesync.errors import Unreachable
from tools.demo.evidence import rows_of_client
from tools.demo.flights import TABLE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lakesync.client import Client

EDITS: Final = 9
CONNECTS_S_MAX: Final = 60
ARRIVES_S_MAX: Final = 30
_LOOKS_EVERY_S: Final = 0.02


def milliseconds(
    writer: Client, reader: Client, table: str, row_id: str, column: str, values: list[Any]
) -> Iterator[float]:
    """Write values one after the other; returns how long each takes, from the edit to the reader.

    Raises:
        Unreachable: no WebSocket opened, or a value did not arrive.
    """
    sql = f'SELECT "{column}" FROM "{table}" WHERE _row_id = ?'  # noqa: S608 - names of the demo
    with SyncLoop(reader, every_s=3_600), reader.watch(sql, (row_id,)) as watch:
        _wait_until_connected(reader)
        for value in values:
            started = time.perf_counter()
            writer.update(table, row_id, {column: value}).unwrap()
            writer.push().unwrap()
            until = started + ARRIVES_S_MAX
            while (rows := watch.next(max(until - time.perf_counter(), 0))) is not None:
                if rows and rows[0][column] == value:
                    break
            else:
                raise Unreachable(f"{value!r} was not on the other screen in {ARRIVES_S_MAX} s")
            yield (time.perf_counter() - started) * 1000


def watched(writer: Client, reader: Client) -> str:
    """Edit a flight that both see, and leave it as it was; returns how soon each edit was seen."""
    seen = rows_of_client(reader)
    row_id = min(seen.keys() & rows_of_client(writer).keys())
    remarks = [f"boarding, gate {gate}" for gate in range(EDITS - 1)]
    values = [*remarks, seen[row_id]["remark"]]
    # The first wakes the functions.
    first, *others = milliseconds(writer, reader, TABLE, row_id, "remark", values)
    return (
        f"{EDITS} edits of {row_id}, each on the airline's screen after "
        f"{statistics.median(others):.0f} ms, the first after {first:.0f}"
    )


def _wait_until_connected(client: Client) -> None:
    until = time.monotonic() + CONNECTS_S_MAX
    while not client.status.connected:
        if time.monotonic() > until:
            raise Unreachable(f"no WebSocket opened in {CONNECTS_S_MAX} s; see connect's log")
        time.sleep(_LOOKS_EVERY_S)
