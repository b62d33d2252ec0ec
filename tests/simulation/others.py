"""Who stands between a client and its gateway, and answers too: proxies, firewalls, login pages.

Whatever they say is no word of the gateway's: no edit may be set aside for it, and none counts as
arrived. All of it bears a mark, by which the oracle knows it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final, TypeVar

from lakesync.client.gateway_http import foreign
from lakesync.errors import LakeSyncError
from tests.simulation.history import Violation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from random import Random

    from lakesync.client import OutboxEntry

T = TypeVar("T")

MARK: Final = "somebody on the way"
_PAGE: Final = f"<html>{MARK}: log in, please</html>".encode()
_MESSAGE: Final = json.dumps({"message": MARK}).encode()
_HALF: Final = json.dumps({"error": MARK, "code": "SCHEMA_ERROR"}).encode()
IMPOSTOR: Final = (
    200,
    b'{"serverHlc":"0","accepted":0,"deltas":[],"results":[],"serverTimeMs":0}',
)
"""A receipt for a push without edits, whatever the push: of another, or by a stand-in for tests."""
SAYINGS: Final = (
    *(
        (status, body)
        for status in (400, 401, 403, 404, 409, 410, 413)
        for body in (_PAGE, _MESSAGE)
    ),
    *((status, _PAGE) for status in (200, 302, 407, 429, 500, 502, 503, 504, 511)),
    (400, _HALF),
    (200, b""),
    (200, b"\x1f\x8b"),
)
"""What they answer: a status and a body."""


def saying(random: Random) -> tuple[int, bytes]:
    """Return what somebody on the way answers."""
    return random.choice(SAYINGS)


def read(decode: Callable[[bytes], T], body: bytes) -> T:
    """Read an answer with status 200 as the client's transport does: by whether it decodes."""
    if not body:
        raise foreign(200, {}, body)
    try:
        return decode(body)
    except (ValueError, KeyError, TypeError, LakeSyncError) as exc:
        raise foreign(200, {}, body) from exc


def check_quarantined(entry: OutboxEntry, said: Iterable[str]) -> None:
    """Check that an edit was set aside for what the gateway said."""
    if not (entry.code and entry.reason):
        raise Violation("no edit is lost", f"{entry} is quarantined without a reason")
    if MARK in entry.reason:
        raise Violation("no edit is lost", f"{entry} is set aside for what {MARK} said")
    if not any(entry.reason.startswith(sentence) for sentence in said):
        raise Violation("no edit is lost", f"{entry} is set aside for what nobody said")
