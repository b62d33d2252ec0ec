"""The source's binary log: whether it can be captured, where it ends, and how it is read.

Positions that are valid on all servers of a group: sets of transaction ids. MariaDB states the last
transaction of each domain (``0-1-27``), MySQL all executed ones
(``3e11fa47-71ca-11e1-9e33-c80aa9429562:1-27``).

The binary log as a stream of packets over a separate connection, as a replica reads it. The driver
has no public interface for a replica's commands, so its internals are used.

Reads the log again from a given time: finds the file with that time, and its transactions. Changes
that are read again keep their commit times, so later changes, from the source or from other
writers, stay as they are. Reading begins with the first transaction of a file, a little before the
requested time.

Law N17: ``docs/spec/connectors.md``.
"""

from __future__ import annotations

import json
import struct
import time
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast
from uuid import UUID

from lakesync.errors import AdapterRefused, AdapterTimedOut
from lakesync.systems.mysql.binlog_events import HEADER_BYTES, begun_s
from lakesync.systems.sql.log_changes import Reading
from lakesync.systems.sql.table_plan import READ_S_MAX

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from lakesync.adapters.sql.standard import Dialect

# --- the log --------------------------------------------------------------------------------------


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


# --- ids of transactions --------------------------------------------------------------------------


Intervals = list[tuple[int, int]]
"""First and last numbers, in order, that neither touch nor overlap."""


def mariadb_grown(position: str, gtid: str) -> str:
    """Return a position of MariaDB, advanced by a transaction."""
    last = {each.split("-")[0]: each for each in position.split(",") if each}
    last[gtid.split("-", maxsplit=1)[0]] = gtid
    return ",".join(last.values())


def mysql_grown(position: str, gtid: str) -> str:
    """Return a position of MySQL, advanced by a transaction."""
    server, _, number = gtid.partition(":")
    ranges = mysql_ranges(position)
    ranges[server] = _with(ranges.get(server, []), int(number))
    return mysql_text(ranges)


def mysql_ranges(position: str) -> dict[str, Intervals]:
    """Parse a position of MySQL.

    Raises:
        ValueError: it is malformed, or has tags.
    """
    ranges: dict[str, Intervals] = {}
    for each in "".join(position.split()).split(","):
        if each:
            server, *parts = each.split(":")
            pairs = (part.partition("-") for part in parts)
            ranges[str(UUID(server))] = sorted(
                (int(first), int(last or first)) for first, _, last in pairs
            )
    return ranges


def mysql_text(ranges: Mapping[str, Intervals]) -> str:
    """Write a position of MySQL."""
    return ",".join(
        ":".join([server, *(f"{a}-{b}" if b > a else str(a) for a, b in parts)])
        for server, parts in ranges.items()
    )


def mysql_bytes(position: str) -> bytes:
    """Return a position in the binary form in which MySQL's log is requested."""
    ranges = mysql_ranges(position)
    data = struct.pack("<Q", len(ranges))
    for server, parts in ranges.items():
        data += UUID(server).bytes + struct.pack("<Q", len(parts))
        for first, last in parts:
            data += struct.pack("<QQ", first, last + 1)
    return data


def mysql_position(data: bytes) -> str:
    """Parse a position in the form of `mysql_bytes`, with which MySQL begins a log file.

    Raises:
        ValueError: it has tags, as its eighth byte says.
    """
    if data[7]:
        raise ValueError("the position has tags")
    ranges: dict[str, Intervals] = {}
    (servers,), at = struct.unpack_from("<Q", data), 8
    for _ in range(servers):
        server, (count,) = UUID(bytes=data[at : at + 16]), struct.unpack_from("<Q", data, at + 16)
        at += 24
        pairs = struct.iter_unpack("<QQ", data[at : at + 16 * count])
        ranges[str(server)] = [(first, behind - 1) for first, behind in pairs]
        at += 16 * count
    return mysql_text(ranges)


def _with(parts: Intervals, number: int) -> Intervals:
    grown: Intervals = []
    for first, last in sorted([*parts, (number, number)]):
        if grown and first <= grown[-1][1] + 1:
            grown[-1] = (grown[-1][0], max(last, grown[-1][1]))
        else:
            grown.append((first, last))
    return grown


# --- the stream -----------------------------------------------------------------------------------


# ruff: noqa: SLF001


_DUMP, _DUMP_GTID = 0x12, 0x1E
_ENDS: Final = 0x01
"""The source ends the stream at the end of the log instead of waiting for more."""
_BY_GTID: Final = 0x04
FIRST: Final = 4
"""The offset of the first event in a file."""
_HEARTBEAT_NS: Final = 5_000_000_000
"""How often the source sends a heartbeat while it looks for a position in its log."""


class Stream:
    """One reading of the log, from a position to its end."""

    def __init__(
        self, dialect: Dialect, position: Position, server_id: int, *, is_mariadb: bool
    ) -> None:
        self._connection = cast("Any", dialect.connect())
        self._connection._read_timeout = READ_S_MAX
        try:
            self._ask(position, server_id, is_mariadb=is_mariadb)
        except BaseException:
            self.close()
            raise

    def _ask(self, at: Position, server_id: int, *, is_mariadb: bool) -> None:
        with self._connection.cursor() as cursor:
            cursor.execute("SET @master_binlog_checksum = @@global.binlog_checksum")
            cursor.execute("SET @source_binlog_checksum = @@global.binlog_checksum")
            cursor.execute("SET @master_heartbeat_period = %s", (_HEARTBEAT_NS,))
            if is_mariadb:
                # A replica's capability: transaction ids.
                cursor.execute("SET @mariadb_slave_capability = 4")
                if at.is_by_gtid:
                    cursor.execute("SET @slave_connect_state = %s", (at.gtid,))
                    cursor.execute("SET @slave_gtid_strict_mode = 1")
        if at.is_by_gtid and not is_mariadb:
            executed = mysql_bytes(at.gtid)
            head = struct.pack("<HIIQI", _ENDS | _BY_GTID, server_id, 0, FIRST, len(executed))
            self._connection._execute_command(_DUMP_GTID, head + executed)
            return
        file, pos = ("", FIRST) if at.is_by_gtid else (at.file, at.pos)
        body = struct.pack("<IHI", pos, _ENDS, server_id) + file.encode()
        self._connection._execute_command(_DUMP, body)

    def packets(self) -> Iterator[bytes]:
        """Yield the events' bytes.

        Raises:
            pymysql.MySQLError: the source no longer has that position (1236), or is unreachable.
        """
        while True:
            packet = self._connection._read_packet()
            if packet.is_eof_packet():
                return
            yield packet.get_all_data()[1:]

    def close(self) -> None:
        """End the connection; the source notices when it writes."""
        with suppress(Exception):  # nothing is lost
            self._connection._force_close()  # a normal close would wait for an answer


# --- a reading ------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class BinlogReading(Reading):
    """One reading of the log."""

    position: Position
    server: str
    back: tuple[int, ...]
    """The place up to which the log is read for a second time."""
    stream: Stream | None = None
    size: int = 0
    """Bytes of the log that were read for this page."""


# --- from a time ----------------------------------------------------------------------------------


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
