"""Sync rules, claims and schemas that change while everything goes on: drawn from the seed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tests.simulation.model import deletes_win
from tests.simulation.oracle import NO_RULES, SPELLED, Claims, Eyes, RulesJson

if TYPE_CHECKING:
    from random import Random

    from tests.simulation.scenario import Table
    from tests.simulation.world import World
    from tests.support.gateways import Administrator

GATEWAY: Final = "g1"
TEAMS: Final = ("red", "green", "blue")
COLUMNS: Final = {
    "title": "string",
    "size": "integer",
    "tags": "json",
    "done": "boolean",
    "team": "string",
    "price": "decimal(8,2)",
    "rate": "number",
    "at": "timestamp",
    "day": "date",
    "blob": "bytes",
}
"""What every table has that has a schema."""
SHARED: Final[dict[str, Any]] = {
    "tables": [],
    "filters": [{"column": "size", "op": "gte", "value": 0}],
    "write": [],
}
"""A bucket that shows everybody the rows that have a size."""
WRITTEN_UNSEEN: Final = 0.4
"""How many buckets let anyone write, also rows that he does not see: much goes wrong only there."""
REFUSED: Final[tuple[dict[str, Any], ...]] = (
    {"columns": [{"name": "title", "type": "string"}]},
    {"columns": [{"name": name, "type": "string"} for name in COLUMNS]},
    {"columns": [{"name": "price", "type": "decimal(99,1)"}]},
    {"columns": [{"name": "price", "type": "money"}]},
    {"columns": [{"name": "1", "type": "string"}, {"name": "1", "type": "string"}]},
    {"columns": []},
    {"partition": ["tags"]},
    {"partition": ["nowhere"]},
    {"primaryKey": ["nowhere"]},
    {"externalIdColumn": "nowhere"},
    {"append": "perhaps"},
    {"table": ""},
)
"""What is wrong with schemas that are refused."""


class Rulings:
    """All rules that ever were in force, in order, and who changes them."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._random = world.stream("rules")
        self._omitting = world.stream("omissions")
        self._drawn: dict[str, RulesJson] = {}
        self.in_force: list[RulesJson] = [NO_RULES]
        self.extra: dict[str, list[str]] = {}
        """Columns that were added to tables."""

    @property
    def were_there(self) -> bool:
        """Return whether there ever were rules."""
        return len(self.in_force) > 1

    @property
    def latest(self) -> int:
        """Return the place of the rules in force."""
        return len(self.in_force) - 1

    def eyes(self, claims: Claims, since: int | None = None) -> list[Eyes]:
        """Return what a client saw by, under all rules in force since the ones at a place."""
        first = self.latest if since is None else since
        return [Eyes(rules, dict(claims)) for rules in self.in_force[first:]]

    def saved(self, rules: Any) -> None:
        """Note what a configuration that is now in force holds."""
        body = NO_RULES
        if rules.buckets:
            body = self._drawn[rules.buckets[0].name.partition(".")[0]]
        elif rules.omit:
            body = self._drawn[rules.omit[0].unless[0].value]
        if body is not self.in_force[-1]:
            self.in_force.append(body)

    # --- what changes -----------------------------------------------------------------------------

    def plan(self) -> None:
        world, scenario = self._world, self._world.scenario
        for times, act in (
            (0 if scenario.shared else scenario.rulings, self._rule),
            (scenario.reclaims, self._reclaim),
            (scenario.widenings, self._widen),
        ):
            for _ in range(times):
                world.later("rules", act, int(self._random.random() * scenario.span_ms))

    def first(self, service: Administrator) -> None:
        """Have rules from the beginning, mostly."""
        scenario = self._world.scenario
        if scenario.rulings and (scenario.shared or self._random.random() < 0.7):
            service.save_rules(GATEWAY, self._draw())

    def _rule(self) -> None:
        world, body = self._world, self._draw()

        def save(service: Administrator) -> object:
            return service.save_rules(GATEWAY, body)

        world.functions.administer(save, "rules saved", "rules not saved")

    def _reclaim(self) -> None:
        device = self._random.choice(self._world.devices)
        self._world.count("claims changed")
        device.link.claims = claims(self._random, device.client_id)

    def _widen(self) -> None:
        world, random = self._world, self._random
        typed = [table for table in world.scenario.tables if table.typed]
        if not typed:
            return
        table = random.choice(typed)
        name = f"extra{world.number()}"
        # Apps use a column before the gateway knows it, now and then.
        self.extra.setdefault(table.name, []).append(name)
        body = schema(table.name, self.extra[table.name], append=table.append)
        if random.random() < 0.3:
            self.extra[table.name].pop()
            body |= random.choice([*REFUSED, {"append": not table.append}])

        def register(service: Administrator) -> object:
            return service.register_schema(GATEWAY, body)

        world.functions.administer(register, "columns added", "columns not added")

    def _draw(self) -> RulesJson:
        random, number = self._random, self._world.number()
        tables = self._world.scenario.tables
        buckets = [
            _bucket(random, f"{number}.{place}", tables, hostile=self._world.scenario.hostile)
            for place in range(random.choice([0, 1, 1, 2, 2, 3]))
        ]
        if made_up := self._world.declarations.names:
            for bucket in buckets:
                bucket["tables"] += random.sample(made_up, 3) if bucket["tables"] else []
                bucket["filters"] = random.choice([bucket["filters"], []])
        body = {"version": 1, "buckets": buckets} if buckets else NO_RULES
        if self._world.scenario.shared:
            body = {"version": 1, "buckets": [SHARED | {"name": str(number)}]}
        if self._world.scenario.omissions:
            body = {**body, "omit": self._omissions(str(number))}
        self._drawn[str(number)] = body
        return body

    def _omissions(self, number: str) -> list[dict[str, Any]]:
        """Draw what is left out; the first one excepts everybody, and names the draw."""
        random, tables = self._omitting, [table.name for table in self._world.scenario.tables]
        everybody = {"claim": "gw", "op": "neq", "value": number}
        named = {"tables": [], "columns": ["title"], "except": [everybody]}
        return [named, *(_omission(random, tables) for _ in range(random.choice([0, 1, 1, 2])))]


def schema(table: str, extra: list[str], *, append: bool) -> dict[str, object]:
    """Return a table's schema as it is registered."""
    types = COLUMNS | dict.fromkeys(extra, "string")
    columns = [{"name": name, "type": kind} for name, kind in types.items()]
    body = {"table": table, "columns": columns, "append": append}
    return body | ({"deleteWins": True} if deletes_win(table) else {})


def claims(random: Random, client_id: str) -> dict[str, Any]:
    teams = random.sample(TEAMS, random.choice([1, 1, 2]))
    drawn: dict[str, Any] = {"sub": client_id, "gw": GATEWAY, "org": {"teams": teams}}
    if random.random() < 0.9:
        drawn["team"] = random.choice(TEAMS)
    return drawn


def _bucket(
    random: Random, name: str, tables: tuple[Table, ...], *, hostile: bool
) -> dict[str, Any]:
    typed = [table.name for table in tables if table.typed]
    named = random.sample(typed, random.randint(1, len(typed))) if typed else []
    bucket: dict[str, Any] = {
        "name": name,
        "tables": named if random.random() < 0.6 else [],
        "filters": [
            _filter(random, hostile=hostile) for _ in range(random.choice([0, 1, 1, 1, 2]))
        ],
    }
    writers = random.random()
    if writers < WRITTEN_UNSEEN:
        bucket["write"] = []
    elif writers < WRITTEN_UNSEEN + 0.2:
        bucket["write"] = [_filter(random, hostile=hostile)]
    return bucket


def _omission(random: Random, tables: list[str]) -> dict[str, Any]:
    columns = random.sample(sorted(COLUMNS), random.choice([1, 1, 2]))
    return {
        "tables": random.sample(tables, 1) if random.random() < 0.6 else [],
        # Names that differ in case alone are one.
        "columns": [name.upper() if random.random() < 0.2 else name for name in columns],
        "except": [_claim_filter(random) for _ in range(random.choice([0, 1, 1, 1, 2]))],
    }


def _claim_filter(random: Random) -> dict[str, Any]:
    claim, op, value = random.choice(
        [
            ("team", "eq", random.choice(TEAMS)),
            ("team", "in", list(random.sample(TEAMS, 2))),
            ("team", "neq", random.choice(TEAMS)),
            ("team", "in", "jwt:org.teams"),
            ("team", random.choice(["lt", "gte"]), "green"),
            ("org.teams", "eq", random.choice(TEAMS)),
            ("org.teams", "neq", random.choice(TEAMS)),
            ("sub", "in", ["client0", "client2"]),
        ]
    )
    return {"claim": claim, "op": op, "value": value}


def _filter(random: Random, *, hostile: bool) -> dict[str, Any]:
    if hostile and random.random() < 0.6:
        order = random.choice(["lt", "lte", "gt", "gte"])
        return {"column": "team", "op": order, "value": random.choice([*SPELLED, "green"])}
    column, op, value = random.choice(
        [
            ("team", "eq", "jwt:team"),
            ("team", "eq", "jwt:team"),
            ("team", "in", "jwt:org.teams"),
            ("team", "neq", random.choice(TEAMS)),
            ("team", "in", list(random.sample(TEAMS, 2))),
            ("team", random.choice(["lt", "lte", "gt", "gte"]), "green"),
            ("done", "eq", random.random() < 0.5),
            ("size", random.choice(["lt", "lte", "gt", "gte"]), random.randint(0, 3) * 1_000_000),
        ]
    )
    return {"column": column, "op": op, "value": value}
