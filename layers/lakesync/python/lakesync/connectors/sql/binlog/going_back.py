"""Reads the log again from a given time: finds the file with that time, and its transactions.

Changes that are read again keep their commit times, so later changes, from the source or from other
writers, stay as they are. Reading begins with the first transaction of a file, a little before the
requested time.

Law N17: ``docs/spec/connectors.md``.
"""

from __future__ import annotations

import json
from contextlib import closing
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from lakesync.connectors.sql.binlog.events import HEADER_BYTES, begun_s
from lakesync.connectors.sql.binlog.gtids import mysql_position
from lakesync.connectors.sql.binlog.log import Position
from lakesync.connectors.sql.binlog.stream import FIRST, Stream
from lakesync.errors import AdapterRefused

if TYPE_CHECKING:
    from lakesync.adapters.sql.dialect import Dialect
    from lakesync.connectors.sql.binlog.log import Look

_S: Final = 1_000_000
_PREVIOUS_GTIDS: Final = 35
_PACKETS_MAX: Final = 20
"""Bytes that are read of a file: its description is before its first transaction."""


def asked_for(cursor: str, at_us: int) -> str:
    """Return the cursor from which the log is read since a time; the current one if earlier."""
    at: dict[str, Any] = json.loads(cursor or "{}")
    at.pop("from", None)
    if "file" not in at:
        return cursor  # all tables are to be read whole
    return json.dumps(at | {"from": at_us} if at_us < at["us"] else at)


class GoingBack:
    """Finds the position of a time in the log.

    Args:
        dialect: connects to the source.
        server_id: this reader's number.
    """

    def __init__(self, dialect: Dialect, server_id: int) -> None:
        self._dialect = dialect
        self._server_id = server_id

    def moved(self, cursor: Any, look: Look, at: dict[str, Any]) -> dict[str, Any]:
        """Return the cursor's values at the first transaction of the file that contains a time.

        Raises:
            AdapterRefused: no retained file has it.
        """
        at_us = at["from"]
        cursor.execute("SHOW BINARY LOGS")
        files = [str(row[0]) for row in cursor.fetchall()]
        low, high = 0, len(files) - 1
        oldest_us, _ = self._begun(files[0], look)
        if at["server"] != look.server or oldest_us > at_us:
            raise AdapterRefused(
                f"the source's log begins at {_text(oldest_us)}, and what was before was dropped: "
                "ask for that or a later time, for one after the last change to go on without, or "
                "for none to read the tables again"
            )
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (
                (middle, high)
                if self._begun(files[middle], look)[0] <= at_us
                else (low, middle - 1)
            )
        begun_us, gtid = self._begun(files[low], look)
        if look.is_mariadb:
            cursor.execute("SELECT BINLOG_GTID_POS(%s, %s)", (files[low], FIRST))
            gtid = cursor.fetchone()[0] or ""
        is_by_gtid = at["is_by_gtid"] and gtid is not None
        used = (gtid or "") if is_by_gtid else ""
        back = Position(files[low], FIRST, used, 0, 0, begun_us, is_by_gtid)
        kept = {name: each for name, each in at.items() if name not in {"from", "until", "poll"}}
        return kept | back._asdict() | {"back": Position(at["file"], at["pos"]).place}

    def _begun(self, file: str, look: Look) -> tuple[int, str | None]:
        """Return when a file was begun, and MySQL's position there; None if that has tags."""
        at = Position(file, FIRST)
        with closing(
            Stream(self._dialect, at, self._server_id, is_mariadb=look.is_mariadb)
        ) as stream:
            begun_us = 0
            for number, packet in enumerate(stream.packets()):
                begun_us = begun_us or begun_s(packet) * _S
                if packet[4] == _PREVIOUS_GTIDS:
                    try:
                        return begun_us, mysql_position(packet[HEADER_BYTES:])
                    except ValueError:
                        return begun_us, None
                if number == _PACKETS_MAX or (begun_us and look.is_mariadb):
                    break
        return begun_us, ""


def _text(us: int) -> str:
    return datetime.fromtimestamp(us // _S, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
