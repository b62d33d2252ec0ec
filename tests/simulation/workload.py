"""What the apps do: drawn from the seed, burst by burst."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lakesync.client import Client
from lakesync.core.delta import Op
from lakesync.errors import LakeSyncError
from lakesync.result import Err, Ok
from tests.simulation.oracle import HOSTILE
from tests.simulation.others import check_quarantined
from tests.simulation.rulings import TEAMS
from tests.simulation.triggers import Triggers
from tests.simulation.values import Values

if TYPE_CHECKING:
    from lakesync.client.storage.editor import Editor
    from lakesync.core.delta import Delta
    from lakesync.result import Result
    from tests.simulation.clients import Device
    from tests.simulation.scenario import Table
    from tests.simulation.world import World

LARGE_EDITS = 30
AMENDED = 0.4
"""How often a refused edit that is not taken back is amended, beside JavaScript clients."""
TYPED: dict[str, list[Any]] = {
    "price": [1, -2.5, "1000.25", "0.001", 1e300, "1e3", True],
    "rate": [0.1, -1, 1e300, "1"],
    "at": ["2024-02-29T12:00:00Z", "2024-02-29 12:00:00.5+01:00", "2024-02-30T12:00:00Z", "noon"],
    "day": ["2024-02-29", "2023-02-29", "today", 20240229],
    "blob": ["YWJj", "not base64", "", 7],
}
"""Values of columns that not every edit writes; some are not of the column's type."""


class _Undone(Exception):
    """The app gives a transaction up."""


class Workload:
    """One client's user. Goes on where it was when the app restarts."""

    def __init__(self, world: World, number: int) -> None:
        self._world = world
        self._number = number
        self._random = world.stream(f"workload {number}")
        self._typed = world.stream(f"typed values {number}")
        self._tasks = world.stream(f"tasks {number}")
        self._amends = world.stream(f"amendments {number}")
        self._left = world.scenario.bursts
        self._made = 0
        self._begun = -1
        self.values = Values(world, number)
        self._triggers = Triggers(world, number)

    def run(self, device: Device) -> None:
        """Edit until the user has had enough."""
        scenario, scheduler = self._world.scenario, self._world.scheduler
        self.values.start(device)
        if scenario.offline and self._left == scenario.bursts and self._random.random() < 0.5:
            self._world.count("long offline")
            away_ms = int(scenario.span_ms * self._random.random())
            device.link.down_until_ms = scheduler.now_ms + away_ms
        if scenario.eager and self._begun != device.installs:
            self._begun = device.installs
            self._world.count("eager start")
            self._burst(device)
        while self._left > 0:
            self._left -= 1
            pause_ms = self._random.expovariate(scenario.bursts) * scenario.span_ms
            pause_ms = min(pause_ms, scenario.span_ms / 2)
            if scenario.together:
                beat_ms = scenario.span_ms // (2 * scenario.bursts)
                pause_ms = beat_ms - scheduler.elapsed_ms % beat_ms + self._random.random() * 60
            scheduler.sleep(pause_ms)
            if self._world.is_calm:
                return
            self._burst(device)

    def _burst(self, device: Device) -> None:
        assert device.client is not None
        for _ in range(self._random.randint(1, self._world.scenario.burst_edits_max)):
            if self._world.scenario.made_up:
                self._world.declarations.edit(device)
            if self._world.scenario.by_sql:
                self.values.act(device)
            if self._world.scenario.triggers:
                self._triggers.act(device)
            drawn = self._random.random()
            if drawn < 0.12:
                self._transaction(device, self._random.randint(2, 6))
            elif drawn < 0.14:
                self._transaction(device, LARGE_EDITS)
            elif drawn < 0.18:
                self._handle_quarantine(device)
            else:
                self._edit(device)

    # --- single edits -----------------------------------------------------------------------------

    def _edit(self, device: Device) -> None:
        client = device.client
        assert client is not None
        match self._any_edit(client, client.client_id):
            case Ok(delta):
                self._note(device, delta)
            case Err(error):
                self._world.count(f"edit: {error.code}")

    def _note(self, device: Device, delta: Delta, *, checked: bool = True) -> None:
        assert device.client is not None
        self._world.losses.edited(device.client, delta, self._world.scheduler.now_ms)
        device.session.edited(device.client, delta, checked=checked)

    def _any_edit(self, client: Editor, client_id: str) -> Result[Delta, LakeSyncError]:
        random = self._random
        table = random.choice(self._world.scenario.tables)
        self._made += 1
        marker = self._number * 1_000_000 + self._made
        if table.append:
            self._world.count("event")
            return client.insert(table.name, f"{client_id}-{marker}", self._columns(table))
        row_id = f"row{random.randrange(self._world.scenario.rows)}"
        drawn = random.random()
        if drawn < 0.25:
            self._world.count("insert")
            columns = self._columns(table) if random.random() < 0.8 else {}
            return client.insert(table.name, row_id, columns)
        if drawn < 0.8:
            self._world.count("update")
            return client.update(table.name, row_id, self._columns(table))
        self._world.count("delete")
        return client.delete(table.name, row_id)

    def _columns(self, table: Table) -> dict[str, object]:
        """Return values that no other edit writes; some do not fit the table's schema."""
        random = self._random
        self._made += 1
        marker = self._number * 1_000_000 + self._made
        values: dict[str, object] = {
            "title": f"{marker} {'ä' * random.choice([0, 0, 0, 30])}",
            "size": marker,
            "tags": [marker, {"a": None}],
            "done": random.random() < 0.5,
        }
        for name in self._world.rulings.extra.get(table.name, ()):
            values[name] = f"{marker}"
        names = random.sample(sorted(values), random.randint(1, 3))
        if self._world.scenario.widenings and self._typed.random() < 0.2:
            name = self._typed.choice(sorted(TYPED))
            values[name] = self._typed.choice(TYPED[name])
            names = [*names, name]
        if self._world.scenario.rulings and random.random() < 0.6:
            values["team"] = random.choice([*TEAMS, *TEAMS, None])
            names = [*names, "team"]
        if self._world.scenario.hostile and self._typed.random() < 0.6:
            self._world.count("hostile value")
            name = self._typed.choice(["team", "team", "title", "tags", *sorted(TYPED)])
            value = self._typed.choice(HOSTILE)
            # What an app reads of a list by SQL is its text; the title is held against both ways.
            values[name] = value if name != "title" or isinstance(value, str) else ""
            names = [*names, name]
        chosen = {name: values[name] for name in names}
        if table.typed and random.random() < 0.06:
            self._world.count("edit against the schema")
            chosen["size"] = "many"
        if random.random() < 0.02:
            chosen["title"] = f"{marker}" + "x" * 700
        return chosen

    # --- several at once --------------------------------------------------------------------------

    def _transaction(self, device: Device, edits: int) -> None:
        client: Any = device.client
        made: list[Delta] = []
        try:
            with client.transaction() as tx:
                # That of the JavaScript client is made at its end, behind what others do meanwhile.
                is_made_at_its_end = not isinstance(client, Client)
                if is_made_at_its_end:
                    self._meanwhile(device)
                made += [self._any_edit(tx, client.client_id).unwrap() for _ in range(edits)]
                if not is_made_at_its_end:
                    self._meanwhile(device)
            if is_made_at_its_end:
                made = tx.deltas
            self._world.pushes.made_together(made)
        except _Undone:
            self._world.count("transaction undone")
            return
        except LakeSyncError as error:
            self._world.count(f"transaction: {error.code}")
            return
        self._world.count("transaction")
        # Later edits of the same transaction may cover earlier ones: only the last is looked for.
        for delta in made[:-1]:
            self._note(device, delta, checked=False)
        self._note(device, made[-1])

    def _meanwhile(self, device: Device) -> None:
        """Let another task of the thread edit: if that is accepted, it stays, come what may."""
        if self._tasks.random() < 0.3:
            self._edit(device)
        if self._tasks.random() < 0.2:
            raise _Undone

    # --- what was refused -------------------------------------------------------------------------

    def _handle_quarantine(self, device: Device) -> None:
        self.settle(device, take_back=self._random.random() < 0.5)

    def settle(self, device: Device, *, take_back: bool) -> None:
        """Let the app look at what was refused, and take it back or try it again."""
        client = device.client
        assert client is not None
        for entry in client.quarantined().unwrap():
            check_quarantined(entry, self._world.pushes.said)
            if take_back:
                device.session.discards(entry.delta)
                client.discard(entry.delta.delta_id).unwrap()
            elif self._world.scenario.javascript and self._amends.random() < AMENDED:
                self._amend(device, entry.delta)
            else:
                client.retry(entry.delta.delta_id).unwrap()

    def _amend(self, device: Device, refused: Delta) -> None:
        """Replace a refused edit by one with a value that the schema takes."""
        assert device.client is not None
        self._made += 1
        marker = self._number * 1_000_000 + self._made
        device.session.discards(refused)
        columns = {} if refused.op is Op.DELETE else {"size": marker}
        match device.client.amend(refused.delta_id, columns):
            case Ok(delta):
                self._world.count("edit amended")
                self._note(device, delta)
            case Err(error):
                self._world.count(f"amend: {error.code}")
