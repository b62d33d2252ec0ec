"""The binary log as a stream of packets over a separate connection, as a replica reads it.

The driver has no public interface for a replica's commands, so its internals are used.
"""

# ruff: noqa: SLF001

from __future__ import annotations

import struct
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, cast

from lakesync.connectors.sql.binlog.gtids import mysql_bytes
from lakesync.connectors.sql.catalogue import READ_S_MAX

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lakesync.adapters.sql.dialect import Dialect
    from lakesync.connectors.sql.binlog.log import Position

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
