"""What flows brought, held against what there is: rows, histories and dead letters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lakesync.adapters.database import Position
from lakesync.adapters.ledger_database import values_of
from lakesync.connectors.port import Storage
from lakesync.connectors.state import DeadLetters
from lakesync.flows.routes import keeper
from lakesync.wire.records import decode_row_state
from tests.simulation.flow_ends import GATEWAY, refusals
from tests.simulation.flow_sources import EVENTS, TABLE, due_of
from tests.simulation.history import Violation
from tests.support.gateways import pulled

if TYPE_CHECKING:
    from collections.abc import Collection

    from tests.simulation.flow_sources import Rows
    from tests.simulation.flows import Flows
    from tests.simulation.world import World


class Checks:
    """Looks at all flows once everything is quiet."""

    def __init__(self, flows: Flows) -> None:
        self._flows = flows

    def check(self) -> None:
        """Hold each destination against its source."""
        source = self._flows.shop.rows
        for name, declared in self._flows.declared.items():
            if name == "events":
                self._check_events()
                continue
            due = due_of(source, declared)
            self._check_rows(name, declared, due)
            self._check_letters(name, declared["destination"], due)
            source = due

    def _check_rows(self, name: str, declared: dict[str, Any], due: Rows) -> None:
        if declared["destination"] == "gateway":
            stored = self._flows.ends.gateway.scan_rows(GATEWAY, TABLE, "", 10_000).rows
            states = {row_id: decode_row_state(one.state) for row_id, one in stored}
            history = [
                one for one in pulled(self._flows.ends.gateway, GATEWAY) if one.table == TABLE
            ]
            refused = refusals(due)
        else:
            secret = declared["destination"]["secret"]
            database = self._flows.ends.raw(secret, keeper(GATEWAY, name))
            states = database.rows_after(TABLE, "", 10_000).unwrap().rows
            read = database.query_deltas_since(TABLE, Position(), 100_000).unwrap().deltas
            history, refused = [placed.delta for placed in read], set()
        there = {row_id: values_of(state) for row_id, state in states.items()}
        for row_id in sorted({*due, *there} - refused):
            if there.get(row_id) != due.get(row_id):
                fault = f"{name} {row_id}: {there.get(row_id)}, not {due.get(row_id)}"
                raise Violation("flows bring what there is", fault)
        self._check_once(name, history)

    def _check_once(self, name: str, history: list[Any]) -> None:
        ids = [one.delta_id for one in history]
        if len({*ids}) < len(ids):
            twice = next(one for one in history if ids.count(one.delta_id) > 1)
            raise Violation("flows bring nothing twice", f"{name}: {twice}")

    def _check_letters(self, name: str, to: Any, due: Rows) -> None:
        refused = refusals(due)
        gone = self._flows.shop.ever_removed - refused if to == "gateway" else set()
        self._check_listed(name, refused, gone)
        if to != "gateway":
            database = self._flows.ends.raw(to["secret"], keeper(GATEWAY, name))
            there = {one.row_id for one in database.dead_letters(TABLE).unwrap()}
            if there != refused:
                raise Violation("refused rows are listed", f"{name}: {there}, not {refused}")

    def _check_listed(self, name: str, refused: set[str], gone: Collection[str] = ()) -> None:
        """Hold the dead letters against what is refused; of what went without a trace one stays."""
        objects: Any = _Objects(self._flows.world)
        letters = DeadLetters(Storage(objects, GATEWAY, name)).first(10_000)
        listed = {one["rowId"] for one in letters if one["reason"]}
        counted = self._flows.state(name).dead_letters
        if not refused <= listed <= refused.union(gone) or counted != len(letters):
            raise Violation(
                "refused rows are listed",
                f"{name}: {sorted(listed)}, not {sorted(refused)}; {counted} are counted",
            )

    def _check_events(self) -> None:
        brought = [one for one in pulled(self._flows.ends.gateway, GATEWAY) if one.table == EVENTS]
        self._check_once("events", brought)
        due = {one.row_id for one in self._flows.clicks.log} - self._flows.clicks.refused
        if {one.row_id for one in brought} != due:
            missing = sorted(due - {one.row_id for one in brought})
            raise Violation("flows bring what there is", f"events: {missing} are missing")
        self._check_listed("events", self._flows.clicks.refused)


class _Objects:
    """The lake's bucket, as it is."""

    def __init__(self, world: World) -> None:
        self._objects = world.objects

    def list_objects(self, prefix: str) -> list[str]:
        return sorted(key for key in self._objects if key.startswith(prefix))

    def get_object(self, key: str) -> bytes:
        return self._objects[key]
