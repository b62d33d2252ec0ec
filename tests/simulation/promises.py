"""What is checked, by name, and the laws of ``docs/spec`` that each check stands for."""

from __future__ import annotations

from typing import Final

PROMISES: Final[dict[str, tuple[str, ...]]] = {
    # commits and receipts, as they happen: tests.simulation.history
    "commit stamps rise": ("B2",),
    "no commit below a cursor": ("B6", "B7", "B12"),
    "exactly once": ("A1", "A3", "A4", "B4"),
    "duplicates are not logged": ("M3",),
    "atomic pushes are whole": ("B9",),
    "a transaction is pushed whole": ("K8",),
    "accepted is durable": ("B1",),
    "refused is refused": ("W3",),
    "receipts add up": ("B1",),
    # pages, as they are handed out: tests.simulation.history
    "a cursor misses no commit": ("B8", "B9"),
    "pages are bounded": ("B9",),
    "pages lead on": ("B8",),
    "pages reach the present": ("B1", "B8", "B15", "B17"),
    "void cursors are refused": ("B10", "B12"),
    "snapshots are whole": ("B11", "M8"),
    "a file belongs to one gateway": ("B19", "K36"),
    # what goes out of the log: tests.simulation.store
    "nothing is trimmed too early": ("B10",),
    # each client's own rows, while it works: tests.simulation.session
    "read your writes": ("K1",),
    "monotonic writes": ("K4", "K10"),
    "writes follow reads": ("K4",),
    "monotonic reads": ("K5",),
    "no row lacks a page": ("K5", "K6"),
    "no row is made up": ("K6", "K7"),
    "a sync reaches the present": ("K5",),
    # who is let in, in each process: tests.simulation.gate
    "a client has one user": ("U1", "U4"),
    "revoked within a minute": ("U2", "U3"),
    # sync rules: tests.simulation.history, tests.simulation.sights
    "nobody is sent what is hidden": ("T3", "V1", "V2", "V4", "V7", "V11", "V12"),
    "writes keep to the rules": ("V5",),
    "nobody writes what is left out": ("V12",),
    "deleted rows come back whole": ("K37", "V5"),
    "clients hold nothing that is hidden": ("K15", "V4", "V6", "V9"),
    "clients hold nothing that is left out": ("K33", "V12"),
    "clients hold all that they may see": ("K15", "V6", "V7", "V8", "V9", "V12"),
    # what is told over WebSockets: tests.simulation.sockets, tests.simulation.history
    "a broadcast is its range": ("T1", "T2"),
    "the sender gets no echo": ("T4",),
    "a connection ends with its right": ("T6",),
    # tables that apps make up: tests.simulation.declarations
    "nobody declares what nothing names": ("S7",),
    "nobody declares too much": ("S7",),
    # a gateway that is deleted in the middle: tests.simulation.store, tests.simulation.deletion
    "nothing happens after a deletion": ("E1",),
    "a deleted gateway is gone": ("E1", "E2", "E3"),
    # the order of a flush's steps, and quiet: tests.simulation.checkers
    "an announcement names claims": ("D1",),
    "announced after written": ("D2",),
    "announced before the watermark": ("D1", "D2", "D3"),
    "a range is one batch": ("D1", "D2", "D3"),
    "liveness": ("B5", "B16", "D4"),
    # at the end: tests.simulation.checkers
    "clients converge": ("K6", "K12", "K14", "M4", "M5"),
    "the app sees the row": ("K1", "K29", "M6", "M10"),
    "a value is one value": ("K34",),
    "no name breaks a client": ("K9",),
    "the gateway converges": ("B3", "M4", "M7"),
    "the lake converges": ("D1", "M4"),
    "exactly once in the changes": ("D1", "D2"),
    "changes in commit order": ("D1",),
    "destinations converge": ("D7", "D8", "D10", "D11"),
    # polled flows, at the end: tests.simulation.flows
    "flows bring what there is": ("Y1", "Y2", "Y3", "Y5", "Y8", "Y11"),
    "flows bring nothing twice": ("N2", "N7", "Y5"),
    "refused rows are listed": ("N4", "Y9"),
    "restores lose no own edit": ("K13",),
    "no edit is lost": ("K2", "K3", "K7", "K8"),
    "an event happens once": ("A1", "K11"),
    # lost writes, at the end: tests.simulation.losses
    "a lost write is told": ("K27",),
    "what was read is no lost write": ("K27",),
}
