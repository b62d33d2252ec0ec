"""A replication slot and a publication at the source: all operations on them."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from psycopg import errors as pg

from lakesync.connectors.sql.capture.waiting import patience
from lakesync.connectors.sql.names import bare_table
from lakesync.connectors.storage import digest
from lakesync.errors import AdapterFailed, AdapterRefused

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from lakesync.connectors.sql.catalogue import PostgresSource
    from lakesync.connectors.sql.configuration import PostgresSettings
    from lakesync.connectors.storage import Storage

PEEK_MESSAGES_MAX: Final = 100_000
"""Messages that the source decodes from its log at a time, and more until a transaction ends; until
they are fetched, they are in a file of the session."""
FETCH_MESSAGES_MAX: Final = 500
"""Messages that are fetched at a time, and are in memory."""
_SLOT_NAME_MAX: Final = 40
_PORTAL: Final = "lakesync_changes"
_LOOK: Final = """
    SELECT current_setting('wal_level'), pg_current_wal_flush_lsn()::text,
           (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
           s.slot_name IS NOT NULL, s.confirmed_flush_lsn::text, coalesce(s.wal_status, ''),
           coalesce(pg_wal_lsn_diff(pg_current_wal_flush_lsn(), s.restart_lsn), 0)::bigint,
           coalesce(s.database = current_database() AND s.plugin = 'pgoutput', true),
           EXISTS (SELECT FROM pg_publication WHERE pubname = %s)
    FROM (SELECT) one LEFT JOIN pg_replication_slots s ON s.slot_name = %s"""
_MAY: Final = """
    SELECT bool_or(rolsuper OR rolreplication OR rolname = 'rds_replication')
    FROM pg_roles WHERE pg_has_role(current_user, oid, 'member')
        AND (rolname = current_user OR rolname = 'rds_replication')"""
_FREE: Final = (
    "SELECT current_setting('max_replication_slots')::int - count(*) FROM pg_replication_slots"
)


class Look(NamedTuple):
    """The state of a slot."""

    wal_level: str
    flushed: int
    """The end of the durable part of the source's log."""
    now_us: int
    """The time by the source's clock."""
    is_there: bool
    confirmed: int
    """The position before which commits are no longer kept."""
    wal_status: str
    kept_bytes: int
    """Bytes of the log that the source keeps because of the slot."""
    is_ours: bool
    """Whether the slot is of this database, and uses pgoutput."""
    is_published: bool


class Slot:
    """The slot and the publication of one connector."""

    def __init__(
        self, source: PostgresSource, settings: PostgresSettings, storage: Storage
    ) -> None:
        plain = "".join(letter if letter.isalnum() else "_" for letter in storage.name.lower())
        mine = digest(storage.gateway, storage.name)[:6]
        name = f"lakesync_{plain[:_SLOT_NAME_MAX]}_{mine}"
        self.name = settings.slot or name
        self.publication = settings.publication or name
        self._dialect = source.dialect

    def look(self, cursor: Any) -> Look:
        """Query the state of the slot.

        Raises:
            AdapterRefused: the source cannot have a slot.
        """
        cursor.execute(_LOOK, (self.publication, self.name))
        level, flushed, now_us, there, confirmed, status, kept, ours, published = cursor.fetchone()
        if level != "logical":
            raise AdapterRefused(
                f"wal_level is {level}: change capture needs wal_level = logical; set it and "
                "restart the server (on RDS and Aurora: rds.logical_replication = 1)"
            )
        return Look(
            level, lsn_of(flushed), now_us, there, lsn_of(confirmed or "0/0"), status, kept, ours,
            published,
        )  # fmt: skip

    def check(self, cursor: Any) -> None:
        """Refuse a user who may not capture, and a server that has no slot left.

        Raises:
            AdapterRefused: what to do.
        """
        look = self.look(cursor)
        cursor.execute(_MAY)
        if not cursor.fetchone()[0]:
            raise AdapterRefused(
                "the user may not read the log of changes: ALTER ROLE … REPLICATION (on RDS and "
                "Aurora: GRANT rds_replication TO …)"
            )
        cursor.execute(_FREE)
        if not look.is_there and cursor.fetchone()[0] < 1:
            raise AdapterRefused("all replication slots are in use: raise max_replication_slots")

    def published(self, tables: Sequence[str], *, is_made: bool) -> str:
        """Return the statement that publishes tables, or that creates the publication with them."""
        names = ", ".join(map(self._quoted, tables))
        publication = self._quoted(self.publication)
        if is_made:
            return f"ALTER PUBLICATION {publication} ADD TABLE {names}"
        return (
            f"CREATE PUBLICATION {publication} FOR TABLE {names} "
            "WITH (publish_via_partition_root = true)"
        )

    def publish(self, cursor: Any, tables: Sequence[str], *, is_made: bool) -> None:
        """Publish tables.

        Raises:
            AdapterRefused: the user may not; the message says what to run.
        """
        self._define(cursor, self.published(tables, is_made=is_made))

    def make(self, cursor: Any) -> int:
        """Create the slot; return the position where its changes begin.

        Raises:
            AdapterTimedOut: it waits for a transaction that does not end.
        """
        try:
            cursor.execute(
                "SELECT lsn::text FROM pg_create_logical_replication_slot(%s, 'pgoutput')",
                (self.name,),
            )
        except pg.QueryCanceled as exc:
            raise patience() from exc
        return lsn_of(cursor.fetchone()[0])

    def drop(self, cursor: Any) -> None:
        """Drop the slot if it exists."""
        cursor.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots "
            "WHERE slot_name = %s",
            (self.name,),
        )

    def drop_publication(self, cursor: Any) -> None:
        """Drop the publication if it exists."""
        self._define(cursor, f"DROP PUBLICATION IF EXISTS {self._quoted(self.publication)}")

    def advance(self, cursor: Any, lsn: int) -> None:
        """Let the source remove its log before a position."""
        statement = "SELECT pg_replication_slot_advance(%s, %s::pg_lsn)"
        cursor.execute(statement, (self.name, lsn_text(lsn)))

    def peek(self, connection: Any, until: int) -> Iterator[bytes]:
        """Yield the messages of transactions that commit before, or `PEEK_MESSAGES_MAX` and some.

        They can be read until the connection's current transaction ends.
        """
        with connection.cursor(name=_PORTAL) as portal:
            portal.itersize = FETCH_MESSAGES_MAX
            portal.execute(
                "SELECT data FROM pg_logical_slot_peek_binary_changes(%s, %s::pg_lsn, %s, "
                "'proto_version', '1', 'publication_names', %s)",
                (self.name, lsn_text(until), PEEK_MESSAGES_MAX, self._quoted(self.publication)),
                binary=True,
            )
            for (data,) in portal:
                yield data

    def _quoted(self, name: str) -> str:
        return bare_table(self._dialect, name)

    def _define(self, cursor: Any, statement: str) -> None:
        """Run a data definition statement in a transaction of its own."""
        connection = cursor.connection
        connection.rollback()
        try:
            cursor.execute("SET TRANSACTION READ WRITE")
            cursor.execute(statement)
            connection.commit()
        except (pg.InsufficientPrivilege, pg.InvalidParameterValue, pg.FeatureNotSupported) as exc:
            connection.rollback()
            reason = str(exc).splitlines()[0]
            raise AdapterRefused(
                f"let the owner of the tables run: {statement}; ({reason})"
            ) from exc


def lsn_of(text: str) -> int:
    """Parse a position in the log."""
    high, _, low = text.partition("/")
    return (int(high, 16) << 32) | int(low, 16)


def lsn_text(lsn: int) -> str:
    """Write a position in the log as the source does."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def forgotten(source: PostgresSource, slot: Slot, kept: Mapping[str, Any]) -> str:
    """Drop the slot and the publication; return what remains, with the statements to run."""
    try:
        connection = source.connect()
    except Exception as exc:
        error = source.dialect.translate(exc)
        if error is None:
            raise
        return f"{_remains(slot, kept)} ({error.message})"
    try:
        cursor, remains = connection.cursor(), []
        try:
            slot.drop(cursor)
            connection.commit()
        except pg.Error as exc:
            connection.rollback()
            remains.append(f"{_remains(slot, {})} ({str(exc).splitlines()[0]})")
        if kept.get("made"):
            try:
                slot.drop_publication(cursor)
            except AdapterFailed as error:
                remains.append(error.message)
    finally:
        with suppress(Exception):  # the slot is gone already
            connection.close()
    return " ".join(remains)


def _remains(slot: Slot, kept: Mapping[str, Any]) -> str:
    sentence = (
        "the source keeps its log until this is run there: SELECT pg_drop_replication_slot("
        f"'{slot.name}');"
    )
    return sentence + (f" DROP PUBLICATION {slot.publication};" if kept.get("made") else "")
