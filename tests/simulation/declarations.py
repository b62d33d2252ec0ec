"""Tables that apps make up, in several spellings, while rules and schemas come to name some.

The oracle is law S7 alone. Whose push declared what is noted here when it is declared.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from lakesync.errors import TableNotDeclared
from lakesync.log import declare
from lakesync.result import Err
from tests.simulation.history import Violation

if TYPE_CHECKING:
    from lakesync.client import Client
    from lakesync.core.config import GatewayConfig
    from lakesync.core.messages import Push
    from tests.simulation.clients import Device
    from tests.simulation.scenario import Scenario
    from tests.simulation.world import World
    from tests.support.gateways import Administrator

GATEWAY: Final = "g1"
TABLES_MAX: Final = 3
COLUMNS_MAX: Final = 8
TABLE_COLUMNS_MAX: Final = 4
"""What a user may declare here: less than apps make up."""
COLUMNS: Final = tuple(f"c{number}" for number in range(6))
ROWS: Final = 4


class Declarations:
    """What is declared, by whom, and the administrator who registers schemas meanwhile."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._random = world.stream("made up tables")
        self._table_of: dict[str, str] = {}
        """The user who declared a table."""
        self._column_of: dict[tuple[str, str], str] = {}

    @property
    def names(self) -> list[str]:
        """Return the names of the tables that apps make up, each in one spelling."""
        return [f"made{number}" for number in range(self._world.scenario.made_up)]

    def spelling(self) -> str:
        name = self._random.choice(self.names)
        return self._random.choice([name, name, name, name.upper(), name.title()])

    def plan(self) -> None:
        """Have schemas registered in the middle, perhaps."""
        for _ in range(self._world.scenario.made_up // 2):
            at_ms = int(self._random.random() * self._world.scenario.span_ms)
            self._world.later("schema", self._register, at_ms)

    def _register(self) -> None:
        columns = [{"name": name, "type": "string"} for name in COLUMNS]
        body = {"table": self.spelling(), "columns": columns}

        def register(service: Administrator) -> object:
            return service.register_schema(GATEWAY, body)

        self._world.functions.administer(register, "table named", "table not named")

    def edit(self, device: Device) -> None:
        """Write to a table that may exist nowhere yet."""
        client, random = device.client, self._random
        assert client is not None
        columns = random.sample(COLUMNS, random.choice([1, 1, 2, 3]))
        values = {name: f"{self._world.number()}" for name in columns}
        done = client.update(self.spelling(), f"row{random.randrange(ROWS)}", values)
        how = f"made up: {done.error.code}" if isinstance(done, Err) else "edit of a made up table"
        self._world.count(how)

    # --- what must hold ---------------------------------------------------------------------------

    def saved(self, before: GatewayConfig, config: GatewayConfig, push: Push | None) -> None:
        """Hold what a push declared against the rules in force, and against its user's limits."""
        if push is None or not self._world.scenario.made_up:
            return
        user = str(push.claims["sub"])
        for table, columns in config.tables.items():
            if table in config.schemas:
                continue
            if table not in before.tables:
                if not self._is_named(table):
                    raise Violation("nobody declares what nothing names", f"{user}: {table}")
                self._table_of[table] = user
                self._world.count("table declared")
            for name in columns - before.tables.get(table, frozenset()):
                self._column_of[table, name] = user
        bare = config.tables.keys() - config.schemas.keys()
        tables = sum(by == user for table, by in self._table_of.items() if table in bare)
        own = [table for (table, _), by in self._column_of.items() if by == user and table in bare]
        if tables > TABLES_MAX or len(own) > COLUMNS_MAX:
            raise Violation("nobody declares too much", f"{user}: {tables}, {len(own)} columns")
        if max(Counter(own).values(), default=0) > TABLE_COLUMNS_MAX:
            raise Violation("nobody declares too much", f"{user}: {own}")

    def _is_named(self, table: str) -> bool:
        """Return whether a bucket of the rules in force names a table; all do if there are none."""
        buckets = self._world.rulings.in_force[-1]["buckets"]
        return not buckets or any(
            not bucket["tables"] or table in bucket["tables"] for bucket in buckets
        )

    def left_to_do(self, client: Client) -> str:
        """Return which edit a client has set aside, though its table is named by now."""
        if not self._world.scenario.made_up:
            return ""
        schemas = {name.lower() for name in self._world.store.config(GATEWAY).schemas}
        for entry in client.quarantined().unwrap():
            table = entry.delta.table
            is_named = self._is_named(table) or table.lower() in schemas
            if entry.code == TableNotDeclared.code and is_named:
                return f"an edit of {table}, which is named by now"
        return ""


def bounds(scenario: Scenario) -> list[tuple[Any, str, int]]:
    """Return how much a user may declare, where apps make tables up."""
    if not scenario.made_up:
        return []
    return [
        (declare, "CLIENT_TABLES_MAX", TABLES_MAX),
        (declare, "CLIENT_COLUMNS_MAX", COLUMNS_MAX),
        (declare, "CLIENT_TABLE_COLUMNS_MAX", TABLE_COLUMNS_MAX),
    ]
