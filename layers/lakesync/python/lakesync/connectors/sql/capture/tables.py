"""Determines which of the configured tables can be captured, and what to do about the others."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lakesync.connectors.sql.names import bare_table
from lakesync.connectors.sql.plan import Plan, plan_of
from lakesync.connectors.sql.postgres_values import resolved
from lakesync.errors import AdapterRefused

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lakesync.connectors.sql.capture.slot import Slot
    from lakesync.connectors.sql.catalogue import PostgresSource
    from lakesync.connectors.sql.configuration import PolledTable

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
    columns: list[list[str]]
    """Names and SQL types, without generated columns, which the log does not contain."""
    is_published: bool
    is_owned: bool
    """Whether the user may publish it."""
    parts: str
    """A digest of its partitions and their files: TRUNCATE gives a partition another file."""


class Tables:
    """The tables of one connector.

    Attributes:
        faults: what is wrong with those that cannot be captured, and what to do.
        looks: the others.
    """

    def __init__(
        self, source: PostgresSource, slot: Slot, settings: Mapping[str, PolledTable]
    ) -> None:
        self._source = source
        self._slot = slot
        self._settings = settings
        self.faults: dict[str, str] = {}
        self.looks: dict[str, TableLook] = {}

    def look(self, cursor: Any) -> None:
        """Query the state of all tables."""
        names = list(self._settings)
        quoted = [bare_table(self._source.dialect, name) for name in names]
        cursor.execute(_TABLES, (self._slot.publication, names, quoted))
        self.faults, self.looks = {}, {}
        for row in cursor.fetchall():
            look = TableLook(*row)
            fault = self._fault(look)
            if fault:
                self.faults[look.name] = fault
            else:
                self.looks[look.name] = look

    def publish(self, cursor: Any, *, is_made: bool) -> bool:
        """Publish all tables that can be captured; those that cannot be published become faults.

        Args:
            cursor: a cursor of the source; its transaction is ended.
            is_made: whether the publication exists.

        Returns: Whether the publication was created.

        Raises:
            AdapterRefused: there is no publication, or it omits some changes.
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
        """Return how a table is read, by its current definition.

        Raises:
            AdapterRefused: a configured column is missing, or the table does not exist.
        """
        described = self._source.described(cursor, name)
        if not described or name not in self.looks:
            raise AdapterRefused(f"there is no table {name}, or the user may not see it")
        logged = {column for column, _ in self.looks[name].columns}
        columns = tuple(each for each in described[0].columns if each.name in logged)
        return plan_of(
            self._settings[name], replace(described[0], columns=columns), self._source.values
        )

    def xid(self, cursor: Any) -> str:
        """Return the id of the next transaction."""
        cursor.execute("SELECT pg_snapshot_xmax(pg_current_snapshot())::text")
        return str(cursor.fetchone()[0])

    def types(self, name: str) -> dict[str, str]:
        """Return the source's types of the configured columns that the table has."""
        look, settings = self.looks[name], self._settings[name]
        key = settings.key or look.primary_key
        return {
            column: sql_type
            for column, sql_type in look.columns
            if settings.columns is None or column in {*settings.columns, *key}
        }

    def _fault(self, look: TableLook) -> str:
        name, settings = look.name, self._settings[look.name]
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
