"""Faults in what clients are shown, and may write, under sync rules."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lakesync.client import resync, upload
from lakesync.client.download import Pages
from lakesync.client.resync import Resyncer
from lakesync.core import rules
from lakesync.core.config import GatewayConfig
from lakesync.core.delta import Op
from lakesync.core.merge import EMPTY, deltas_of
from lakesync.core.visibility import Transition, Viewer, rule_columns, transition_of
from lakesync.errors import WrongKey
from lakesync.gateway import filtered_reads
from lakesync.gateway.bootstrap import ChangedTables
from lakesync.gateway.filtered_reads import Records, RuleFilter
from lakesync.gateway.pull import PullService
from lakesync.log.push_parts import WriteRules
from lakesync.wire.log_entries import RuleRowsWriter
from lakesync.wire.records import decode_records, encode_records
from tests.simulation.deliberate.registry import Replaced, deliberate
from tests.simulation.themes import FINAL, HOSTILE, RESTORED, RULES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lakesync.core.clock import Stamp
    from lakesync.core.delta import Delta
    from lakesync.core.merge import RowState
    from lakesync.core.messages import Pull, PullPage
    from lakesync.gateway.filtered_reads import RowsToRead
    from lakesync.ports import LogEntry, RowKey


def transitions(changed: dict[Transition, Transition]) -> list[Replaced]:
    """Take some transitions for others."""

    def transition(saw: bool, sees: bool, *, ends: bool) -> Transition:  # noqa: FBT001 - as the real
        real = transition_of(saw, sees, ends=ends)
        return changed.get(real, real)

    return [(filtered_reads, "transition_of", transition)]


@deliberate("filters are held against the delta instead of its row", RULES)
def filter_on_the_delta() -> list[Replaced]:
    def entry_of(self: RuleFilter, entry: LogEntry, rows: RowsToRead) -> Records:
        del rows
        deltas_sent = []
        for delta in decode_records(entry.records):
            row = rule_columns(delta.columns, self.columns(delta.table))
            if delta.op is Op.DELETE or self.viewer.sees(delta.table, row):
                deltas_sent.append(delta)
        return Records((encode_records(deltas_sent),), len(deltas_sent))

    return [(RuleFilter, "_entry", entry_of)]


@deliberate("only the row after a commit decides", RULES)
def visibility_by_the_new_row() -> list[Replaced]:
    return transitions({Transition.ENTER: Transition.CHANGE, Transition.LEAVE: Transition.NOTHING})


@deliberate("a row that leaves is not taken away", RULES)
def removal_not_sent() -> list[Replaced]:
    return transitions({Transition.LEAVE: Transition.NOTHING})


@deliberate("of a row that enters, the delta is sent and not the whole row", RULES)
def entering_rows_as_deltas() -> list[Replaced]:
    return transitions({Transition.ENTER: Transition.CHANGE})


@deliberate("a delete does not reach those who saw the row", RULES)
def deletes_are_hidden() -> list[Replaced]:
    return transitions({Transition.END: Transition.NOTHING})


@deliberate("what was hidden before and after is sent", RULES)
def hidden_rows_are_sent() -> list[Replaced]:
    return transitions({Transition.NOTHING: Transition.CHANGE})


@deliberate("rows as they are come unfiltered", RULES)
def rows_unfiltered() -> list[Replaced]:
    def row(self: RuleFilter, table: str, row_id: str, state: RowState) -> list[Delta]:
        del self
        return deltas_of(table, row_id, state)

    return [(RuleFilter, "row", row)]


@deliberate("a cursor outlives a change of rules or claims", RULES)
def scope_is_forgotten() -> list[Replaced]:
    real = PullService.pull

    def pull(self: PullService, gateway: str, pull: Pull) -> PullPage:
        return real(self, gateway, replace(pull, scope=""))

    return [(PullService, "pull", pull)]


@deliberate("a warm function keeps the claims that a client came with first", RULES)
def claims_are_remembered() -> list[Replaced]:
    real = PullService.pull

    def pull(self: PullService, gateway: str, pull: Pull) -> PullPage:
        known = self.__dict__.setdefault("known", {})
        claims = known.setdefault(pull.client_id, pull.claims)
        return real(self, gateway, replace(pull, claims=claims))

    return [(PullService, "pull", pull)]


@deliberate("tables that are read again are done after one page", RULES | {"page_deltas": 1})
def resync_of_one_page() -> list[Replaced]:
    return [(ChangedTables, "scope_text", lambda tables: tables.now.text())]


@deliberate("the client keeps what was not brought when tables were read again", RULES)
def stale_rows_stay() -> list[Replaced]:
    return [(Resyncer, "read_again", lambda *_: None)]


@deliberate("edits that wait leave together with their row", RULES)
def removals_take_edits_along() -> list[Replaced]:
    real = Pages._bring

    def bring(self: Pages, table: Any, by_row: Any, *rest: Any, **limits: Any) -> None:
        hidden = {delta.row_id for row in by_row.values() for delta in row if delta.op is Op.REMOVE}
        self.file.connection.executemany(
            "DELETE FROM _lakesync_outbox WHERE table_id = ? AND row_id = ?",
            [(table.id, row_id) for row_id in hidden],
        )
        real(self, table, by_row, *rest, **limits)

    return [(Pages, "_bring", bring)]


@deliberate("an update makes a deleted row anew of its own columns", RULES)
def deleted_rows_come_back_in_part() -> list[Replaced]:
    return [(WriteRules, "_lacks_the_rest", lambda *_: False)]


@deliberate("what the log cannot decide by the rules in force is removed, and so named", RULES)
def undecided_rows_are_named() -> list[Replaced]:
    real = RuleFilter._in_place_of

    def in_place_of(
        self: RuleFilter, run: bytes, transition: Transition | None, at: Stamp, rows: RowsToRead
    ) -> Sequence[bytes]:
        sent = real(self, run, transition, at, rows)
        (delta,) = decode_records(run)
        if transition is not None or sent:
            return sent
        return (encode_records([self._removal(delta.table, delta.row_id, at)]),)

    return [(RuleFilter, "_in_place_of", in_place_of)]


@deliberate("a delta that makes a deleted row anew is taken for all of it", RULES)
def deletes_are_no_part_of_rows() -> list[Replaced]:
    real = RuleRowsWriter.add

    def add(self: RuleRowsWriter, table: str, before: Any, after: Any, *, alone: bool) -> None:
        del alone
        real(self, table, before, after, alone=True)

    return [(RuleRowsWriter, "add", add)]


# --- writes ---------------------------------------------------------------------------------------


@deliberate("writes are judged by the row as it was", RULES)
def writes_by_the_row_before() -> list[Replaced]:
    real = WriteRules.may_write

    def may_write(self: WriteRules, key: RowKey, before: RowState, after: RowState) -> bool:
        del after
        return real(self, key, before, before)

    return [(WriteRules, "may_write", may_write)]


@deliberate("writes are judged by the row as it would be", RULES)
def writes_by_the_row_after() -> list[Replaced]:
    real = WriteRules.may_write

    def may_write(self: WriteRules, key: RowKey, before: RowState, after: RowState) -> bool:
        del before
        return real(self, key, EMPTY, after)

    return [(WriteRules, "may_write", may_write)]


@deliberate("rows out of sight may be written where no write filters say otherwise", RULES)
def hidden_rows_are_written() -> list[Replaced]:
    real = Viewer.may_write

    def may_write(self: Viewer, table: str, before: Any, after: Any) -> bool:
        return not self._rules.write_filters(table) or real(self, table, before, after)

    return [(Viewer, "may_write", may_write)]


@deliberate("what a restored buffer hides is taken for lost, and stamped again", RESTORED)
def hidden_events_are_taken_for_lost() -> list[Replaced]:
    return [(resync, "ruled_tables", lambda _: set())]


@deliberate("a number that no double holds makes a decision fail", HOSTILE)
def numbers_are_doubles() -> list[Replaced]:
    real = rules._sort_key

    def in_order(text: str) -> tuple[object, Any]:
        if rules.number(text) is not None:
            int(float(text))
        return real(text)

    return [(rules, "_sort_key", in_order)]


@deliberate("text that spells a number stands in order as text", HOSTILE)
def numbers_are_compared_as_text() -> list[Replaced]:
    return [(rules, "_sort_key", lambda text: (str, text))]


@deliberate("the gateway takes a deleted row for one that is there, once it is updated", FINAL)
def deletes_do_not_win_at_the_gateway() -> list[Replaced]:
    return [(GatewayConfig, "as_read", lambda _, __, state: state)]


@deliberate("an edit of a table that nothing names keeps all others waiting", RULES)
def undeclared_edits_wait() -> list[Replaced]:
    return [(upload, "TableNotDeclared", WrongKey)]
