"""The source's binary log: whether it can be captured, where it ends, how much is unread."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lakesync.connectors.sql.binlog.gtids import mysql_ranges
from lakesync.errors import AdapterRefused, AdapterTimedOut

if TYPE_CHECKING:
    from collections.abc import Mapping

GTID_CHARACTERS_MAX: Final = 1_000
"""A longer position is stored as a file and an offset, so that the cursor stays small."""
SEEN_S_MAX: Final = 5
"""How long a poll waits until the log's changes are visible in the tables."""
_LOOK_S: Final = 0.05
_WANTED: Final[Mapping[str, tuple[str, ...]]] = {
    "log_bin": ("ON", "1"),
    "binlog_format": ("ROW",),
    "binlog_row_metadata": ("FULL",),
    "binlog_row_value_options": ("",),
    "binlog_transaction_compression": ("OFF", "0"),
    "encrypt_binlog": ("OFF", "0"),
}
"""The required values of the source's settings, if it has them."""
_ASKED: Final = (
    *_WANTED, "binlog_row_image", "binlog_checksum", "gtid_mode", "server_id", "server_uuid",
    "lower_case_table_names", "binlog_expire_logs_seconds", "expire_logs_days", "version",
)  # fmt: skip


class Position(NamedTuple):
    """A position in the log."""

    file: str
    pos: int
    gtid: str = ""
    """The ids of all transactions before it; empty if the source assigns no ids."""
    events: int = 0
    """Events with rows of the next transaction that were processed already."""
    rows: int = 0
    """Rows of the event after those that were processed already."""
    us: int = 0
    """The time of the previous part; all later parts have later times."""
    is_by_gtid: bool = False

    @property
    def place(self) -> tuple[int, int]:
        """The file and the offset, which order the positions of one server."""
        number = self.file.rpartition(".")[2]
        return (int(number) if number.isdigit() else 0, self.pos)


class Look(NamedTuple):
    """The state of the log."""

    settings: Mapping[str, str]
    now_us: int
    end: Position

    @property
    def is_mariadb(self) -> bool:
        """Whether it is MariaDB's."""
        return "mariadb" in self.settings["version"].lower()

    @property
    def server(self) -> str:
        """The server whose log it is."""
        return self.settings.get("server_uuid") or self.settings["server_id"]

    @property
    def is_folded(self) -> bool:
        """Whether names of tables are compared without regard to case."""
        return self.settings.get("lower_case_table_names", "0") != "0"

    @property
    def kept_s(self) -> int:
        """How long the source keeps its log, in seconds; 0 if it removes nothing by age."""
        seconds = float(self.settings.get("binlog_expire_logs_seconds", 0))
        return int(seconds or float(self.settings.get("expire_logs_days", 0)) * 86_400)


def look(cursor: Any) -> Look:
    """Query the state of the log.

    Raises:
        AdapterRefused: it cannot be captured; the message says what to set.
    """
    places = ", ".join(["%s"] * len(_ASKED))
    cursor.execute(f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({places})", _ASKED)
    settings = {name: str(value) for name, value in cursor.fetchall()}
    wrong = [
        f"{name} = {wanted[0] or repr('')}"
        for name, wanted in _WANTED.items()
        if name in settings and settings[name].upper() not in wanted
    ]
    if "binlog_row_metadata" not in settings:
        raise AdapterRefused("change capture needs MySQL 8.0 or MariaDB 10.5, or newer")
    if wrong:
        raise AdapterRefused(
            f"the log does not record rows as change capture needs: set {', '.join(wrong)} "
            "(log_bin needs a restart; on RDS and Aurora, in the parameter group, with backups "
            "enabled)"
        )
    cursor.execute("SELECT CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED)")
    return Look(settings, cursor.fetchone()[0], _end(cursor, settings))


def _end(cursor: Any, settings: Mapping[str, str]) -> Position:
    """Return the end of the log; with ids, of the transactions that are visible in the tables."""
    is_mariadb = "mariadb" in settings["version"].lower()
    if is_mariadb:
        file, pos = seen(cursor)
        cursor.execute("SELECT BINLOG_GTID_POS(%s, %s)", (file, pos))
        gtid = cursor.fetchone()[0]
        return _position(file, pos, gtid, is_by_gtid=gtid is not None)
    cursor.execute("SELECT @@GLOBAL.gtid_executed")
    gtid = "".join(str(cursor.fetchone()[0]).split())
    cursor.execute(status_statement(settings["version"]))
    file, pos = cursor.fetchone()[:2]
    return _position(file, int(pos), gtid, is_by_gtid=settings.get("gtid_mode", "OFF") == "ON")


def _position(file: str, pos: int, gtid: str | None, *, is_by_gtid: bool) -> Position:
    gtid = gtid or ""
    try:
        fits = len(gtid) <= GTID_CHARACTERS_MAX and (":" not in gtid or bool(mysql_ranges(gtid)))
    except ValueError:
        fits = False  # ids with tags
    is_used = is_by_gtid and fits
    return Position(file, pos, gtid if is_used else "", is_by_gtid=is_used)


def status_statement(version: str) -> str:
    """Return the statement that queries the end of MySQL's log."""
    major, minor = (int(part) for part in version.split(".")[:2])
    return "SHOW BINARY LOG STATUS" if (major, minor) >= (8, 4) else "SHOW MASTER STATUS"


def seen(cursor: Any) -> tuple[str, int]:
    """Return the position up to which MariaDB's log is visible in its tables."""
    cursor.connection.rollback()
    cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
    cursor.execute("SHOW STATUS LIKE 'binlog_snapshot_%'")
    status = {name.lower(): value for name, value in cursor.fetchall()}
    cursor.connection.rollback()
    return status["binlog_snapshot_file"], int(status["binlog_snapshot_position"])


def unread_bytes(cursor: Any, position: Position) -> int:
    """Return the size of the log behind a position; negative if the log ends before it."""
    cursor.execute("SHOW BINARY LOGS")
    number, pos = position.place
    unread, end = 0, (0, 0)
    for file, size, *_ in cursor.fetchall():
        other = Position(file, int(size)).place
        end = max(end, other)
        if other[0] >= number:
            unread += max(other[1] - pos, 0) if other[0] == number else other[1]
    return unread if end >= position.place else -1


def reached(now: Look, position: Position) -> str:
    """Return the position up to which `wait` waits for the log to be visible, as text."""
    values = {"server": now.server, "file": position.file, "pos": position.pos}
    return json.dumps(values | {"gtid": position.gtid, "us": now.now_us})


def wait(cursor: Any, until: str) -> None:
    """Wait until the log's changes are visible in the tables: it is written shortly before.

    Raises:
        AdapterTimedOut: they are not visible after `SEEN_S_MAX`.
    """
    at, now = json.loads(until), look(cursor)
    if at["server"] != now.server:
        return  # another server took over: nothing more will become visible
    for _ in range(int(SEEN_S_MAX / _LOOK_S)):
        if _is_seen(cursor, at, now):
            return
        cursor.connection.rollback()
        time.sleep(_LOOK_S)
    raise AdapterTimedOut(
        "the source has not finished a transaction that is in its log; tables are read once it "
        "has: SELECT * FROM information_schema.INNODB_TRX ORDER BY trx_started"
    )


def _is_seen(cursor: Any, at: Mapping[str, Any], now: Look) -> bool:
    if now.is_mariadb:
        return Position(*seen(cursor)).place >= Position(at["file"], at["pos"]).place
    if at["gtid"]:
        cursor.execute("SELECT GTID_SUBSET(%s, @@GLOBAL.gtid_executed)", (at["gtid"],))
        return bool(cursor.fetchone()[0])
    cursor.execute(
        "SELECT count(*) = 0 FROM information_schema.INNODB_TRX "
        "WHERE trx_started <= FROM_UNIXTIME(%s / 1000000) AND trx_rows_modified > 0",
        (at["us"],),
    )
    return bool(cursor.fetchone()[0])
