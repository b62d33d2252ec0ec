"""Clients: the real `Client` and `SyncLoop` on a real SQLite file, in a process that may die."""

from __future__ import annotations

import atexit
import functools
import shutil
import sqlite3
import tempfile
from typing import TYPE_CHECKING, Any, Final

from lakesync.client import Client
from lakesync.client.loop import SyncLoop
from lakesync.client.storage.file_layout import claim
from lakesync.client.waits import never
from lakesync.errors import AnotherGateway, LakeSyncError
from lakesync.result import Err, Ok, Result
from tests.simulation.history import bugs_are_raised
from tests.simulation.listening import TaskLock
from tests.simulation.model import deletes_win
from tests.simulation.network import GATEWAY, Link, SchemaTransport, SimulatedTransport
from tests.simulation.scheduler import Crashed, Event, Process
from tests.simulation.session import Session
from tests.simulation.sights import check_sight, has_read_everything
from tests.simulation.stored import edits_in
from tests.support.hooked_connection import HookedConnection

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from lakesync.client.storage.misuse import Mode
    from lakesync.client.sync import SyncSummary
    from lakesync.core.delta import Delta
    from tests.simulation.workload import Workload
    from tests.simulation.world import World


CHECKED: Final = 0.2
"""The share of syncs after which all rows of the file are checked; it costs more than the sync."""


LOOKED_AT: Final = 0.5
"""The same under sync rules."""


COPIED: Final = 0.95
"""The share of new files that are copied instead of made, statement by statement."""


REBINDS_WITHIN_MS: Final = 120_000
"""How long an app takes, at the most, to give its file to another gateway on purpose."""


@functools.cache
def empty_file(client_id: str) -> str:
    """Return a file as a new client makes it."""
    folder = tempfile.mkdtemp(prefix="lakesync-simulation-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = f"{folder}/empty.db"
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    claim(connection, client_id)
    connection.close()
    return path


class CrashingConnection(HookedConnection):
    """A connection whose process may die before or after any statement."""

    device: Device

    def execute(self, *arguments: Any) -> sqlite3.Cursor:
        """Run a statement, or die."""
        self.device.statement()
        cursor = super().execute(*arguments)
        if arguments[0] == "COMMIT":
            self.device.statement()
        return cursor

    def executemany(self, *arguments: Any) -> sqlite3.Cursor:
        """Run statements, or die."""
        self.device.statement()
        return super().executemany(*arguments)


class Device:
    """One client: a file that outlives its processes."""

    def __init__(self, world: World, number: int, folder: Path, workload: Workload) -> None:
        self._world = world
        self._folder = folder
        self._random = world.stream(f"client {number}")
        self.workload = workload
        self.installs = 0
        """How often it was reinstalled."""
        self.number = number
        self.client_id = f"client{number}"
        self.client_ids = [self.client_id]
        self.clock = world.new_clock(world.scenario.client_skew_ms, world.scenario.coarse_ms)
        self.link = Link(world, self.client_id)
        self.session = Session(world.history, self.client_id)
        self.process = Process("none")
        self.process.alive = False
        self.client: Client | None = None
        self._dead: Client | None = None
        self._keeper: sqlite3.Connection | None = None
        """Keeps a killed app's log beside its file: whoever closes it last would fold it in."""
        self.knows: object = None
        """The rules and claims by which its last sync that went well was decided."""
        self._will_rebind = False
        """Its app knows that the gateway is another one, and gives the file to that one soon."""
        self.done = False
        """Its app has made all its edits."""
        self._path = folder / f"{number}-0.db"

    # --- life and death ---------------------------------------------------------------------------

    def boot(self) -> None:
        world = self._world
        process = self.process = Process(self.client_id)
        process.on_kill.append(self._died)
        world.scheduler.spawn(process, f"{self.client_id} app", self._run)

    def _run(self) -> None:
        self.client = self._opened()
        self.client.edited = Event(self._world.scheduler)  # type: ignore[assignment]
        sync = self.client.sync

        def watched(
            *, stopped: Callable[[], bool] = never, mode: Mode = "full"
        ) -> Result[SyncSummary, LakeSyncError]:
            settled, decides = self._world.history.settled, self.decides
            before = self._world.counts["set up anew"]
            with bugs_are_raised():
                result = sync(stopped=stopped, mode=mode)
            if isinstance(result, Ok) and self.client is not None:
                history = self._world.history
                if before == self._world.counts["set up anew"]:
                    behind_ms = history.behind_ms[self.client_id]
                    self.session.caught_up(self.client, settled, behind_ms)
                    history.introduced.update({self.client_id} if settled else ())
                self.knows = decides
                self._world.losses.read_to_the_end(self.client_id, self._world.scheduler.now_ms)
                self._look()
            return result

        self.client.sync = watched  # type: ignore[method-assign]
        scheduler = self._world.scheduler
        loop = SyncLoop(
            self.client,
            every_s=self._world.scenario.poll_s,
            on_result=self._synced,
            chance=self._random.random,
            monotonic_s=lambda: scheduler.now_ms / 1000,
            network=None,
        )
        loop._woken = Event(scheduler)  # type: ignore[assignment]
        body = functools.partial(loop._run, loop._stopped)
        scheduler.spawn(self.process, f"{self.client_id} sync", body)
        self.client.listen(loop.wake)
        self.workload.run(self)
        self.done = True

    def _opened(self) -> Client:
        if not self._path.exists() and self._random.random() < COPIED:
            shutil.copyfile(empty_file(self.client_id), self._path)
        client = Client(
            self._path,
            client_id=self.client_id,
            transport=self._transport()(self._world, self.process, self.link),
            wall_clock=self.clock,
            durability="NORMAL",
            page_deltas=self._world.scenario.page_deltas,
            # Some begin with another table than the first by name.
            first_tables=["table1"] if self.client_id[-1] in "13579" else [],
            connection_class=self._connect,  # type: ignore[arg-type]  # whatever makes one will do
        )
        client._syncer._one_at_a_time = TaskLock(self._world)  # type: ignore[assignment]
        faults = self._world.faults
        if self._keeper is None and (faults.crash_client or faults.crash_statement):
            self._keeper = sqlite3.connect(self._path)
            self._keeper.execute("SELECT count(*) FROM _lakesync_sync").fetchone()
        return client

    def _transport(self) -> type[SimulatedTransport]:
        scenario = self._world.scenario
        reads = scenario.made_up or any(deletes_win(table.name) for table in scenario.tables)
        return SchemaTransport if reads else SimulatedTransport

    def _connect(self, *arguments: Any, **options: Any) -> sqlite3.Connection:
        if not self._world.faults.crash_statement:
            return sqlite3.Connection(*arguments, **options)
        connection = CrashingConnection(*arguments, **options)
        connection.device = self
        return connection

    @property
    def decides(self) -> object:
        return self._world.rulings.latest, id(self.link.claims)

    def _look(self) -> None:
        """Hold what is in the file against what may be in it, if that can be told."""
        world = self._world
        assert self.client is not None
        if (
            world.rulings.were_there
            and self.knows == self.decides
            and self._random.random() < LOOKED_AT
            and has_read_everything(self.client, world)
        ):
            world.count("sight checked")
            check_sight(self, world)

    @property
    def path(self) -> Path:
        return self._path

    @property
    def is_original(self) -> bool:
        """Return whether the file is still the first one."""
        return not self.installs

    def statement(self) -> None:
        """Die here, perhaps."""
        if not self.process.alive:
            raise Crashed
        self._world.may_crash(self.process, self._world.faults.crash_statement, "at a statement")

    def _died(self) -> None:
        # The statement under way must not meet a closed file: it is closed when that has unwound.
        self._world.later("close", self._bury, 0)
        self._dead, self.client = self.client, None
        self._will_rebind = False
        installs = self.installs

        def restart() -> None:
            self._bury()
            if installs == self.installs:
                self.boot()

        self._world.later("restart", restart, int(self._random.random() * 60_000))

    def _bury(self) -> None:
        """Close what a dead process held open; what it had not committed is gone."""
        if self._dead is not None:
            database, self._dead = self._dead._file.database, None
            database._reader.close()
            database.writer.close()

    def reinstall(self) -> None:
        """Lose the file, and begin again; sometimes as the same client."""
        world = self._world
        world.count("reinstalled")
        self.process.on_kill.clear()
        world.scheduler.kill(self.process)
        self.shut()
        self.session.lost(self._left_in_file())
        self.installs += 1
        if self._random.random() < 0.5:
            self.client_id = f"client{self.number}-{self.installs}"
            self.client_ids.append(self.client_id)
        self._path = self._folder / f"{self.number}-{self.installs}.db"
        self.session.reinstalled(self.client_id)
        self.knows = None
        self.boot()

    def _left_in_file(self) -> list[Delta]:
        """Return the edits that wait in a file that nobody has open."""
        return edits_in(self._path)

    def shut(self) -> None:
        self._bury()
        if self._keeper is not None:
            self._keeper.close()
            self._keeper = None
        if self.client is not None:
            self.client.close()
            self.client = None

    def _rebind(self, process: Process) -> None:
        """Have the app give its file to the new gateway, unless it died since it meant to."""

        def rebind() -> None:
            assert self.client is not None
            self._world.count("rebound")
            self._world.history.elsewhere.discard(self.client_id)
            self.session.rebinds(self.client)
            with bugs_are_raised():
                self.client.rebind("edits").unwrap()
            self._will_rebind = False

        if process.alive:
            self._world.scheduler.spawn(process, f"{self.client_id} rebind", rebind)

    def _synced(self, result: object) -> None:
        with bugs_are_raised():
            self._check_result(result)

    def _check_result(self, result: object) -> None:
        if isinstance(result, Err):
            error = result.error
            assert isinstance(error, LakeSyncError)
            self._world.count(f"sync: {error.code}")
            self._world.note(self.client_id, "sync: %s %s", error.code, error)
            if isinstance(error, AnotherGateway) and not self._will_rebind:
                self._will_rebind = True
                after_ms = int(self._random.random() * REBINDS_WITHIN_MS)
                self._world.later("rebind", functools.partial(self._rebind, self.process), after_ms)
        if self.client is None or not self.process.alive or self._random.random() > CHECKED:
            return
        if not self._world.upkeep.is_down:
            self.session.check(self.client, self._world.store.void(GATEWAY)[1])
