"""Faults in what is left out of the rows that clients are sent, and may write."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lakesync.client import resync
from lakesync.core import visibility
from lakesync.core.merge import deltas_of
from lakesync.core.rules import NO_RULES
from lakesync.core.visibility import Viewer
from lakesync.errors import Forbidden
from lakesync.gateway.filtered_reads import RuleFilter
from lakesync.log.push_parts import WriteRules
from tests.simulation.deliberate.registry import Replaced, deliberate
from tests.simulation.themes import OMITTED, OMITTED_EVENTS

if TYPE_CHECKING:
    from lakesync.core.config import GatewayConfig
    from lakesync.core.delta import Delta
    from lakesync.core.merge import RowState
    from lakesync.core.messages import Pull
    from lakesync.errors import LakeSyncError

HEARD = OMITTED | {"sockets": True}


def everything_is_shown(viewer: Viewer) -> None:
    """Have nothing left out of what a viewer is sent; its scope stays."""
    viewer._omissions = Viewer(NO_RULES, {})._omissions


@deliberate("what is read of the log has the columns that are left out", OMITTED)
def logged_deltas_come_whole() -> list[Replaced]:
    return [(RuleFilter, "_shown", lambda _, __, records: records)]


@deliberate("events have the columns that are left out", OMITTED_EVENTS)
def events_come_whole() -> list[Replaced]:
    real = RuleFilter._shown

    def shown(self: RuleFilter, tables: Any, records: Any) -> Any:
        events = any(map(self._config.appends, tables))
        return records if events else real(self, tables, records)

    return [(RuleFilter, "_shown", shown)]


@deliberate("rows as they are have the columns that are left out", OMITTED)
def rows_come_whole() -> list[Replaced]:
    real = RuleFilter.row

    def row(self: RuleFilter, table: str, row_id: str, state: RowState) -> list[Delta]:
        return real(self, table, row_id, state) and deltas_of(table, row_id, state)

    return [(RuleFilter, "row", row)]


@deliberate("broadcasts forget to leave the columns out", HEARD)
def broadcasts_come_whole() -> list[Replaced]:
    real = RuleFilter.__init__

    def begin(self: RuleFilter, config: GatewayConfig, pull: Pull) -> None:
        real(self, config, pull)
        if not pull.client_id:  # a group of connections asks in nobody's name
            everything_is_shown(self.viewer)

    return [(RuleFilter, "__init__", begin)]


@deliberate("a change of rules leaves the values on the device", OMITTED)
def values_stay_on_the_device() -> list[Replaced]:
    return [(resync, "leave_out", lambda *_: None)]


@deliberate("what is left out is no part of a scope, and tables are not read again", OMITTED)
def scopes_without_omissions() -> list[Replaced]:
    return [(Viewer, "_digest", Viewer._rows_digest)]


@deliberate("a write of a column that is left out is accepted", OMITTED)
def left_out_columns_are_written() -> list[Replaced]:
    def refusal(
        self: WriteRules, delta: Delta, before: RowState, after: RowState
    ) -> LakeSyncError | None:
        may_write = self.may_write((delta.table, delta.row_id), before, after)
        return None if may_write else Forbidden("the sync rules do not let you change this row")

    return [(WriteRules, "refusal", refusal)]


@deliberate("columns whose names differ in case are two", OMITTED)
def names_differ_in_case() -> list[Replaced]:
    return [(visibility, "folded", lambda name: name)]
