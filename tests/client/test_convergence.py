"""Random edits on some clients, synced in random order over a bad network: all end equal."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakesync.client import Client, Fault, MemoryTransport
from lakesync.result import Ok
from tests.client.support.world import World, check_sound, rows_of

if TYPE_CHECKING:
    from lakesync.client.storage.editor import Editor

CLIENTS = ("a", "b", "c")
SKEWS_MS = (0, 3_600_000, -3_600_000)

values = st.sampled_from([None, 0, 1.5, "x", "y", True, [1], {"k": "v"}])
columns = st.dictionaries(st.sampled_from(["p", "q", "s"]), values, min_size=1, max_size=2)
edits = st.tuples(
    st.sampled_from(["insert", "update", "update", "delete"]),
    st.sampled_from(["r1", "r2", "r3"]),
    columns,
)
who = st.integers(0, len(CLIENTS) - 1)
faults = st.lists(st.sampled_from(Fault), max_size=3)

steps = st.one_of(
    st.tuples(st.just("edit"), who, edits),
    st.tuples(st.just("edit"), who, edits),
    st.tuples(st.just("group"), who, st.lists(edits, min_size=2, max_size=4)),
    st.tuples(st.just("sync"), who, faults),
    st.tuples(st.just("push"), who, faults),
    st.tuples(st.just("pull"), who, faults),
    st.tuples(st.just("wait"), who, st.integers(1, 5_000)),
    st.tuples(st.just("restart"), who, st.none()),
)


def edit(client: Editor, change: tuple[str, str, dict[str, object]]) -> None:
    """Make one edit."""
    method, row, written = change
    if method == "delete":
        client.delete("t", row).unwrap()
    else:
        getattr(client, method)("t", row, written).unwrap()


class Story:
    """A world in which a list of steps happens."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.world = World(folder, kind)
        self.transports = [self.world.transport() for _ in CLIENTS]
        self.clients = [self.open(place) for place in range(len(CLIENTS))]

    def open(self, place: int) -> Client:
        """Open a client whose clock is wrong in its own way."""
        clock = self.world.clock
        return self.world.client(
            CLIENTS[place],
            transport=self.transports[place],
            wall_clock=lambda: clock.ms + SKEWS_MS[place],
            page_deltas=2,
        )

    def happen(self, step: tuple[str, int, Any]) -> None:
        """Let one step happen."""
        kind, place, what = step
        client, transport = self.clients[place], self.transports[place]
        match kind:
            case "edit":
                edit(client, what)
            case "group":
                with client.transaction() as tx:
                    for change in what:
                        edit(tx, change)
            case "wait":
                self.world.clock.ms += what
            case "restart":
                client.close()
                self.clients[place] = self.open(place)
            case _:
                transport.faults.extend(what)
                getattr(client, kind)()
        check_sound(self.clients[place])

    def end(self) -> None:
        """Let everyone sync until all have everything."""
        for transport in self.transports:
            transport.faults.clear()
        for _ in range(2):
            for client in self.clients:
                assert isinstance(client.sync(), Ok)

    def flush_delayed(self) -> None:
        """Let what the network still holds arrive."""
        for transport in self.transports:
            deliver_all(transport)


def deliver_all(transport: MemoryTransport) -> None:
    """Deliver delayed requests."""
    late_ones, transport._delayed = transport._delayed, []
    for late in late_ones:
        late()


@pytest.mark.law("K6")
@pytest.mark.parametrize("kind", ["naive", "real"])
@given(story=st.lists(steps, max_size=25))
def test_clients_that_have_synced_show_the_same_rows_as_the_oracle(
    kind: str, story: list[tuple[str, int, Any]]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        played = Story(Path(folder), kind)
        try:
            for step in story:
                played.happen(step)
            played.flush_delayed()
            played.end()
            expected = played.world.rows()
            for client in played.clients:
                assert client.pending() == Ok([])
                assert client.quarantined() == Ok([])
                assert rows_of(client) == expected
                check_sound(client)
        finally:
            played.world.close()
