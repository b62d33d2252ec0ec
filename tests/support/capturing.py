"""Change capture from a real database into a gateway in memory, with polls that may be killed."""

from __future__ import annotations

import itertools
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

from lakesync.buffer.memory_buffer import MemoryBuffer
from lakesync.connectors import FEED, Storage
from lakesync.connectors.missing_rows import brought_by
from lakesync.connectors.poll import Poll, Polled, Route
from lakesync.connectors.state import DeadLetters, Deletions, PollState, state_from
from lakesync.core.delta import parse
from lakesync.core.merge import view
from lakesync.errors import Conflict
from lakesync.systems.mysql.mysql_capture import BinlogConnector
from lakesync.systems.mysql.mysql_capture import forget as forget_binlog
from lakesync.systems.mysql.mysql_settings import MySqlSettings
from lakesync.systems.mysql.mysql_source import MySqlSource
from lakesync.systems.postgres.postgres_capture import CaptureConnector, forget
from lakesync.systems.postgres.postgres_settings import PostgresSettings
from lakesync.systems.postgres.postgres_source import PostgresSource
from lakesync.systems.postgres.replication_slot import Slot
from lakesync.systems.sql.table_plan import plan_of
from lakesync.wire.records import decode_row_state
from tests.support.gateways import GivenTime, pulled, pusher
from tests.support.hosts import LOOPBACK
from tests.support.lake import Killed, Objects

if TYPE_CHECKING:
    from lakesync.core.messages import Push, PushReceipt
    from tools.local_stack.databases import Database

GATEWAY = "g"
NEVER = 1_000_000
_numbers = itertools.count()


class SteppedStorage(Storage):
    """Storage whose writes are steps."""

    world: CaptureWorld

    def write(self, value: object, *path: str) -> None:
        """Write, and perhaps die before or after."""
        self.world.step()
        super().write(value, *path)
        self.world.step()


class SteppedSlot(Slot):
    """A slot whose changes at the source are steps."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.step = arguments[2].world.step if hasattr(arguments[2], "world") else lambda: None

    def make(self, cursor: Any) -> int:
        """Make the slot, and perhaps die before or after."""
        self.step()
        lsn = super().make(cursor)
        self.step()
        return lsn

    def drop(self, cursor: Any) -> None:
        """Drop the slot, and perhaps die after."""
        super().drop(cursor)
        self.step()

    def advance(self, cursor: Any, lsn: int) -> None:
        """Advance the slot, and perhaps die before or after."""
        self.step()
        super().advance(cursor, lsn)
        self.step()


class CaptureWorld:
    """A PostgreSQL with some tables, a gateway, and polls that capture the tables' changes."""

    settings: Any
    source: Any
    drop = "DROP SCHEMA {} CASCADE"
    quotes = '"'

    def __init__(self, database: Database, tables: dict[str, str], ahead_ms: int = 0) -> None:
        self.schema = f"{database.database}_capture{next(_numbers)}"
        self.database = database
        self.tables = {name: f"{self.schema}.{name}" for name in tables}
        self.time = GivenTime(int(time.time() * 1000) - ahead_ms)
        self.buffer = MemoryBuffer()
        self.pusher = pusher(self.buffer, time_=self.time)
        self.objects = Objects()
        self.saved = b""
        self.steps_left = NEVER
        self.during_push: Any = None
        self.is_refused = False
        self.configure()
        self.application: Any = self.source.dialect.connect()
        self.run(f"CREATE SCHEMA {self.schema}")
        for name, columns in tables.items():
            self.run(f"CREATE TABLE {self.tables[name]} ({columns})")

    def configure(self, *, only: tuple[str, ...] = (), **more: Any) -> None:
        """Poll all tables, or only some, with other settings besides."""
        database = self.database
        polled = [{"name": full} for name, full in self.tables.items() if not only or name in only]
        self._configured(
            {
                "host": database.host, "port": database.port, "database": database.database,
                "user": database.user, "password": database.password, "tls": "off",
                "tables": polled, "changes": True,
            }
            | more
        )  # fmt: skip

    def _configured(self, settings: dict[str, Any]) -> None:
        self.settings = PostgresSettings.model_validate(settings)
        self.source = PostgresSource(self.settings, LOOPBACK)

    # --- the source ----------------------------------------------------------------------------

    def run(self, *statements: str, commits: bool = True) -> None:
        """Run statements in one transaction, as the application that owns the database."""
        try:
            cursor = self.application.cursor()
            for statement in statements:
                cursor.execute(statement)
        except Exception:
            self.application.rollback()
            raise
        (self.application.commit if commits else self.application.rollback)()

    def ask(self, statement: str) -> Any:
        cursor = self.application.cursor()
        cursor.execute(statement)
        row = cursor.fetchone()
        self.application.commit()
        return row[0] if row else None

    def expected(self, name: str) -> dict[str, dict[str, Any]]:
        """Return the rows of a table, as the source has them, in the gateway's form."""
        with closing(self.source.connect()) as connection:
            cursor = connection.cursor()
            described = self.source.described(cursor, self.tables[name])[0]
            settings = {table.name: table for table in self.settings.tables}
            values = self.source.values
            plan = plan_of(settings[self.tables[name]], described, values)
            mark = self.quotes
            columns = ", ".join(f"{mark}{column}{mark}" for column in plan.columns)
            cursor.execute(f"SELECT {columns} FROM {self.tables[name]}")  # noqa: S608
            return {plan.row_id(row): plan.values(row) for row in values.rows(cursor)}

    # --- polls ---------------------------------------------------------------------------------

    @property
    def state(self) -> PollState:
        return state_from(self.saved)

    @property
    def slot(self) -> Slot:
        return Slot(self.source, self.settings, self.storage())

    def storage(self) -> Storage:
        brought = brought_by("connector:c", GATEWAY, self.buffer)
        storage = SteppedStorage(self.objects, GATEWAY, f"c-{self.schema}", brought)
        storage.world = self
        return storage

    def step(self) -> None:
        """Die here, if it is time."""
        self.steps_left -= 1
        if self.steps_left <= 0:
            raise Killed

    def push(self, push: Push) -> PushReceipt:
        """Push, and perhaps die before or after."""
        self.step()
        if self.during_push is not None:
            self.during_push()
        receipt = self.pusher.push(GATEWAY, push)
        self.step()
        return receipt

    def save(self, state: PollState, *, ends: bool = False) -> None:  # noqa: ARG002
        """Save, and perhaps die before."""
        self.step()
        if self.is_refused:
            raise Conflict("another process polls this connector")
        self.saved = state.to_json()

    def connector(self) -> Any:
        return CaptureConnector(self.source, self.settings, self.storage())

    def poll(self, *, kill: int = NEVER, pages: int = NEVER) -> str:
        """Go on as a new process, that has time for some pages and may die at some step."""
        self.time.sleep_ms(5)
        self.steps_left = kill
        left = iter(range(pages))
        connector = self.connector()
        poll = Poll(
            "c", Route(connector, self.settings.named(), self.push),
            letters=DeadLetters(self.storage()), deletions=Deletions(self.storage()),
            save=self.save, wall_clock=self.time.wall_clock,
        )  # fmt: skip
        try:
            polled: Polled = poll.run(self.state, lambda: next(left, None) is not None)
        except Killed:
            return "killed"
        finally:
            self.steps_left = NEVER
            connector.close()
        return polled.status

    def rows(self, name: str) -> dict[str, dict[str, Any]]:
        rows: dict[str, dict[str, Any]] = {}
        place, begun = "", False
        while place or not begun:
            begun = True
            piece = self.buffer.scan_rows(GATEWAY, name, place, 1_000)
            place = piece.place
            for row_id, stored in piece.rows:
                values = view(decode_row_state(stored.state))
                if values is not None:
                    rows[row_id] = {column: parse(raw) for column, raw in values.items()}
        return rows

    def deltas(self) -> list[Any]:
        return pulled(self.buffer, GATEWAY, deltas_max=1_000)

    def cursor(self) -> dict[str, Any]:
        return dict(parse(self.state.cursors[FEED].encode()))

    def close(self) -> None:
        remains = self._forgotten()
        self.run(self.drop.format(self.schema))
        self.application.close()
        assert remains == ""

    def _forgotten(self) -> str:
        return forget(self.settings, self.storage(), None, LOOPBACK)


class BinlogWorld(CaptureWorld):
    drop = "DROP SCHEMA {}"
    quotes = "`"

    def _configured(self, settings: dict[str, Any]) -> None:
        self.settings = MySqlSettings.model_validate(settings)
        self.source = MySqlSource(self.settings, LOOPBACK)

    def connector(self) -> BinlogConnector:
        return BinlogConnector(self.source, self.settings, self.storage())

    def _forgotten(self) -> str:
        return forget_binlog(self.storage(), None)
