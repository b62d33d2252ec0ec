"""What capture uses of PostgreSQL: the replication slot, the publication, and its tables."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from psycopg import errors as pg

from lakesync.connectors.port import digest
from lakesync.errors import AdapterFailed, AdapterRefused, AdapterTimedOut
from lakesync.systems.postgres.postgres_source import resolved
from lakesync.systems.sql.captured_tables import CapturableTables
from lakesync.systems.sql.sql_settings import bare_table
from lakesync.systems.sql.table_plan import Plan, plan_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from lakesync.connectors.port import Storage
    from lakesync.systems.postgres.postgres_settings import PostgresSettings
    from lakesync.systems.postgres.postgres_source import PostgresSource
    from lakesync.systems.sql.sql_settings import PolledTable

# --- the slot -------------------------------------------------------------------------------------


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
        cursor.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots "
            "WHERE slot_name = %s",
            (self.name,),
        )

    def drop_publication(self, cursor: Any) -> None:
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


# --- tables ---------------------------------------------------------------------------------------


_TABLES: Final = f"""
    SELECT u.name, coalesce(c.oid, 0)::bigint, coalesce(c.relkind::text, ''),
        coalesce(c.relreplident::text, ''),
        ARRAY(SELECT a.attname::text FROM pg_index i
              JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey)
              WHERE i.indrelid = c.oid AND CASE c.relreplident
                  WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident ELSE false END),
        ARRAY(SELECT a.attname::text FROM pg_index i,
                  unnest(i.indkey::int2[]) WITH ORDINALITY k(attnum, place)
              JOIN pg_attribute a ON a.attnum = k.attnum
              WHERE i.indrelid = c.oid AND a.attrelid = c.oid AND i.indisprimary ORDER BY k.place),
        ARRAY(SELECT ARRAY[a.attname::text, {resolved("a.atttypid", "a.atttypmod")}]
              FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0
              AND NOT a.attisdropped AND a.attgenerated = '' ORDER BY a.attnum),
        EXISTS (SELECT FROM pg_publication_tables p JOIN pg_namespace n ON n.nspname = p.schemaname
                WHERE p.pubname = %s AND n.oid = c.relnamespace AND p.tablename = c.relname),
        coalesce(pg_has_role(c.relowner, 'USAGE'), false),
        CASE c.relkind WHEN 'p' THEN (
            SELECT md5(coalesce(string_agg(p.oid || ':' || p.relfilenode, ',' ORDER BY p.oid), ''))
            FROM pg_partition_tree(c.oid) t JOIN pg_class p ON p.oid = t.relid WHERE t.isleaf)
        ELSE '' END
    FROM unnest(%s::text[], %s::text[]) u(name, quoted)
    LEFT JOIN pg_class c ON c.oid = to_regclass(u.quoted)"""  # noqa: S608 - our own SQL
_PUBLICATION: Final = """
    SELECT pubinsert AND pubupdate AND pubdelete AND pubtruncate, pubviaroot
    FROM pg_publication WHERE pubname = %s"""


class TableLook(NamedTuple):
    """A table at the source."""

    name: str
    table_id: int
    """The table's number (oid); 0 if the table does not exist."""
    kind: str
    identity: str
    identity_columns: list[str]
    primary_key: list[str]
    columns: Mapping[str, str]
    """SQL types by name, without generated columns, which the log does not contain."""
    is_published: bool
    is_owned: bool
    """Whether the user may publish it."""
    parts: str
    """A digest of its partitions and their files: TRUNCATE gives a partition another file."""


class Tables(CapturableTables[TableLook]):
    """The tables of one connector."""

    def __init__(
        self, source: PostgresSource, slot: Slot, settings: Mapping[str, PolledTable]
    ) -> None:
        super().__init__(settings, source.values)
        self._source = source
        self._slot = slot

    def look(self, cursor: Any) -> None:
        names = list(self.settings)
        quoted = [bare_table(self._source.dialect, name) for name in names]
        cursor.execute(_TABLES, (self._slot.publication, names, quoted))
        self.faults, self.looks = {}, {}
        for row in cursor.fetchall():
            look = TableLook(*row)
            look = look._replace(columns=dict(look.columns))
            fault = self._fault(look)
            if fault:
                self.faults[look.name] = fault
            else:
                self.looks[look.name] = look

    def publish(self, cursor: Any, *, is_made: bool) -> bool:
        """Publish all tables that can be captured; those that cannot be published become faults.

        The cursor's transaction is ended.
        """
        if not is_made:
            if not self.looks:
                raise AdapterRefused(" ".join(self.faults.values()))
            self._slot.publish(cursor, list(self.looks), is_made=False)
            return True
        self._check_publication(cursor)
        for name in [name for name, look in self.looks.items() if not look.is_published]:
            try:
                self._slot.publish(cursor, [name], is_made=True)
            except AdapterRefused as error:
                self.faults[name] = error.message
                del self.looks[name]
        return False

    def check(self, cursor: Any, *, is_made: bool) -> None:
        """Refuse tables that the user cannot publish.

        Raises:
            AdapterRefused: the message says what to run first.
        """
        if is_made:
            self._check_publication(cursor)
        wanted = [name for name, look in self.looks.items() if not look.is_published]
        may = all(self.looks[name].is_owned for name in wanted)
        if not is_made:
            cursor.execute("SELECT has_database_privilege(current_database(), 'CREATE')")
            may = may and cursor.fetchone()[0]
        if wanted and not may:
            raise AdapterRefused(
                "the user may not publish the tables: let their owner run: "
                f"{self._slot.published(wanted, is_made=is_made)}"
            )

    def _check_publication(self, cursor: Any) -> None:
        """Refuse a publication that omits some changes.

        Raises:
            AdapterRefused: the message says what to run.
        """
        cursor.execute(_PUBLICATION, (self._slot.publication,))
        is_whole, is_by_root = cursor.fetchone()
        is_parted = any(look.kind == "p" for look in self.looks.values())
        if not is_whole:
            setting = "publish = 'insert, update, delete, truncate'"
        elif is_parted and not is_by_root:
            setting = "publish_via_partition_root = true"
        else:
            return
        raise AdapterRefused(
            "the publication leaves changes out: let its owner run: "
            f"ALTER PUBLICATION {self._slot.publication} SET ({setting})"
        )

    def plan(self, cursor: Any, name: str) -> Plan:
        described = self._source.described(cursor, name)
        if not described or name not in self.looks:
            raise AdapterRefused(f"there is no table {name}, or the user may not see it")
        logged = self.looks[name].columns
        columns = tuple(each for each in described[0].columns if each.name in logged)
        return plan_of(
            self.settings[name], replace(described[0], columns=columns), self._source.values
        )

    def xid(self, cursor: Any) -> str:
        cursor.execute("SELECT pg_snapshot_xmax(pg_current_snapshot())::text")
        return str(cursor.fetchone()[0])

    def _fault(self, look: TableLook) -> str:
        name, settings = look.name, self.settings[look.name]
        if not look.table_id:
            return f"there is no table {name}, or the user may not see it."
        if look.kind not in {"r", "p"}:
            return f"{name} is not a table: changes of views cannot be captured."
        key = settings.key or look.primary_key
        if not key:
            return f"{name} has no primary key: name the columns that identify a row in key."
        # Without it the source would refuse to update and delete rows, once they are published.
        if look.identity == "n" or not (look.identity_columns or look.identity == "f"):
            return (
                f"{name} does not tell which rows are updated and deleted: "
                f"ALTER TABLE {name} REPLICA IDENTITY {'DEFAULT' if look.primary_key else 'FULL'}"
            )
        if look.identity != "f" and not set(key) <= set(look.identity_columns):
            return (
                f"{name} does not tell the key {', '.join(key)} of rows that are deleted: "
                f"ALTER TABLE {name} REPLICA IDENTITY FULL"
            )
        return ""


# --- waiting --------------------------------------------------------------------------------------


OPEN_S_MAX: Final = 5
"""How long a poll waits for transactions to end that were open when a table's baseline was set."""
_LOOK_S: Final = 0.1
_ENDED: Final = "SELECT pg_snapshot_xmin(pg_current_snapshot()) >= %s::xid8"


def wait(cursor: Any, xid: str) -> None:
    """Wait until transactions with a lower number have ended.

    Raises:
        AdapterTimedOut: one is still open after `OPEN_S_MAX`.
    """
    for _ in range(int(OPEN_S_MAX / _LOOK_S)):
        cursor.execute(_ENDED, (xid,))
        if cursor.fetchone()[0]:
            return
        cursor.execute("SELECT pg_sleep(%s)", (_LOOK_S,))
    raise patience()


def patience() -> AdapterTimedOut:
    """Return the error for a transaction of the source that does not end."""
    return AdapterTimedOut(
        "a transaction of the source began before and is still open; tables are read once it ends: "
        "SELECT pid, xact_start, query FROM pg_stat_activity WHERE xact_start IS NOT NULL "
        "ORDER BY xact_start"
    )
