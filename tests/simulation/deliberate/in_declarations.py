"""Faults in what pushes may declare."""

from __future__ import annotations

from dataclasses import replace

from lakesync.client.storage.outbox import Outbox
from lakesync.core.rules import NO_RULES
from lakesync.log.declare import Declaring
from tests.simulation.deliberate.registry import Replaced, deliberate
from tests.simulation.themes import DECLARATIONS


@deliberate("the gateway declares tables whatever the rules name", DECLARATIONS)
def rules_do_not_bind_declarations() -> list[Replaced]:
    real = Declaring._check_new_table

    def check(self: Declaring, table: str) -> None:
        config, self._config = self._config, replace(self._config, rules=NO_RULES)
        try:
            real(self, table)
        finally:
            self._config = config

    return [(Declaring, "_check_new_table", check)]


@deliberate("what a user declared before does not count", DECLARATIONS)
def declarations_are_not_counted() -> list[Replaced]:
    real = Declaring._begin

    def begin(self: Declaring) -> None:
        real(self)
        self._my_tables = self._my_columns = 0

    return [(Declaring, "_begin", begin)]


@deliberate("edits of undeclared tables stay set aside when they are named", DECLARATIONS)
def named_tables_are_not_tried_again() -> list[Replaced]:
    return [(Outbox, "release_undeclared", lambda _: None)]
