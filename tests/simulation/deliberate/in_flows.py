"""Faults in how polled flows are read, shaped, handed over and written."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lakesync.adapters.file_database import FileTables, definition_of
from lakesync.buffer.admin_stores import ItemConnectors
from lakesync.connectors.connector_admin import ConnectorAdmin
from lakesync.connectors.large_polls import _LargeTable
from lakesync.connectors.poll import PagePusher, Poll
from lakesync.connectors.state import DeadLetters
from lakesync.core.column_map import NO_MAP
from lakesync.core.delta import Op
from lakesync.flows import database_sources
from lakesync.flows.database_sources import LedgerSource
from lakesync.flows.shaping import Shaping
from tests.simulation.deliberate.registry import Replaced, deliberate
from tests.simulation.themes import FLOWS, LARGE_FLOWS, REFUSED_FLOWS, SLOW_FLOWS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lakesync.adapters.database import Inserted, PlacedDelta, TableBatch
    from lakesync.connectors.pages import Read
    from lakesync.connectors.port import Stretch
    from lakesync.connectors.state import PollState
    from lakesync.core.clock import Stamp
    from lakesync.core.delta import Delta
    from lakesync.errors import LakeSyncError
    from lakesync.flows.database_sources import Place
    from lakesync.ports import StoredConnector


@deliberate("a poll's cursor is saved before its page is taken", FLOWS)
def flow_cursor_before_page() -> list[Replaced]:
    real = Poll._take

    def take(self: Poll, state: PollState, read: Read) -> None:
        for source in [one for one in self._tables if one not in state.finished][:1]:
            state.cursors[source] = read.cursor
            self._save(state)
        real(self, state, read)

    return [(Poll, "_take", take)]


@deliberate("a job hands over where its stretches end, not where they begin", LARGE_FLOWS)
def stretches_are_behind_as_they_are_given_out() -> list[Replaced]:
    real = _LargeTable._next

    def following(self: _LargeTable, state: PollState, at_once: int) -> list[Stretch]:
        stretches = real(self, state, at_once)
        if stretches:
            state.cursors[self._work.source] = stretches[-1].ends
        return stretches

    return [(_LargeTable, "_next", following)]


@deliberate("a write's history is committed apart from its rows and its mark", FLOWS)
def history_apart_from_its_mark() -> list[Replaced]:
    real = FileTables.insert_part

    def insert(
        self: FileTables, batch: TableBatch, part: Sequence[PlacedDelta], last: Stamp
    ) -> Inserted:
        head = self.head(batch.table)
        definition = definition_of(batch.table, head)
        self._follow(batch.table, head, head, definition, part, {})
        return real(self, batch, part, last)

    def follow(self: FileTables, table: str, *rest: Any, **named: Any) -> Any:
        before, moved, definition, deltas, states = rest
        return followed(self, table, before, moved, definition, () if states else deltas, states,
                        **named)  # fmt: skip

    followed = FileTables._follow
    return [(FileTables, "insert_part", insert), (FileTables, "_follow", follow)]


@deliberate("a lease is given to whoever asks, and a save asks for none", SLOW_FLOWS)
def flow_lease_is_not_checked() -> list[Replaced]:
    lease, save = ItemConnectors.lease, ItemConnectors.save

    def leased(
        self: ItemConnectors, gateway: str, name: str, now_ms: int, until_ms: int, mine: int = 0
    ) -> StoredConnector | None:
        del now_ms
        return lease(self, gateway, name, 1 << 60, until_ms, mine)

    def saved(
        self: ItemConnectors, gateway: str, name: str, number: int, state: bytes, until_ms: int
    ) -> bool:
        stored = self.connector(gateway, name)
        return save(self, gateway, name, stored.lease if stored else number, state, until_ms)

    return [(ItemConnectors, "lease", leased), (ItemConnectors, "save", saved)]


@deliberate("a flow's map drops the deletions of rows", FLOWS)
def map_drops_deletions() -> list[Replaced]:
    real = Shaping.__call__

    def shape(self: Shaping, deltas: Sequence[Delta]) -> list[Delta]:
        shaped = real(self, deltas)
        return [
            one for one in shaped if one.op is not Op.DELETE or self._to.map_of(one.table) == NO_MAP
        ]

    return [(Shaping, "__call__", shape)]


@deliberate("rows that are out of sight now stay where they were brought", FLOWS)
def hidden_rows_stay() -> list[Replaced]:
    real = Shaping.__call__

    def shape(self: Shaping, deltas: Sequence[Delta]) -> list[Delta]:
        return real(self, [one for one in deltas if one.op is Op.DELETE or self._passes(one)])

    return [(Shaping, "__call__", shape)]


@deliberate("rows that went while a history was forgotten are not looked for", FLOWS)
def gone_rows_are_not_looked_for() -> list[Replaced]:
    real = LedgerSource._rows

    def rows(self: LedgerSource, table: str, place: Place, rows_max: int) -> Any:
        return real(self, table, place._replace(again=False), rows_max)

    return [(LedgerSource, "_rows", rows)]


@deliberate("of a row that was deleted and came back columns stay that it had before", FLOWS)
def columns_of_before_stay() -> list[Replaced]:
    real = LedgerSource._changes

    def changes(self: LedgerSource, table: str, rows: Any, deleted: Any) -> Any:
        del deleted
        return real(self, table, rows, ())

    return [(LedgerSource, "_changes", changes)]


@deliberate("a row that is refused is listed once its cursor is saved", FLOWS)
def letters_behind_the_cursor() -> list[Replaced]:
    add, moved_on = DeadLetters.add, Poll._table
    waiting: list[tuple[DeadLetters, str, str, LakeSyncError, Delta | None]] = []

    def added(
        self: DeadLetters, table: str, row_id: str, error: LakeSyncError, delta: Delta | None
    ) -> None:
        waiting.append((self, table, row_id, error, delta))

    def table(self: Poll, state: PollState, source: str, has_time: Any) -> str:
        ended = moved_on(self, state, source, has_time)
        mine = [one for one in waiting if one[0] is self._letters]
        for one in mine:
            waiting.remove(one)
            add(*one)
        return ended

    return [(DeadLetters, "add", added), (Poll, "_table", table)]


@deliberate("who declares a flow again takes it for begun", FLOWS)
def declared_is_begun() -> list[Replaced]:
    return [(ConnectorAdmin, "complete", lambda *_: None)]


@deliberate("rows of a source are dated when they are read", FLOWS)
def rows_dated_when_read() -> list[Replaced]:
    real = database_sources.LedgerSource._history

    def history(self: LedgerSource, table: str, place: Place, rows_max: int) -> Any:
        page = real(self, table, place, rows_max)
        mark = self._database.mark(table).unwrap()
        changes = tuple(one._replace(hlc=mark) for one in page.changes)
        return replace(page, changes=changes)

    return [(LedgerSource, "_history", history)]


@deliberate("a dead letter is removed once its row's deletion is pushed, or never", REFUSED_FLOWS)
def letters_go_behind_deletions() -> list[Replaced]:
    push, withdraw = PagePusher.push, PagePusher._withdraw
    waiting: list[tuple[PagePusher, Read, Sequence[Delta]]] = []

    def withdrawn(self: PagePusher, read: Read, shaped: Sequence[Delta]) -> None:
        waiting.append((self, read, shaped))

    def pushed(self: PagePusher, read: Read, *, has_letters: bool) -> int:
        rows = push(self, read, has_letters=has_letters)
        mine = [one for one in waiting if one[0] is self]
        for one in mine:
            waiting.remove(one)
            withdraw(*one)
        return rows

    return [(PagePusher, "push", pushed), (PagePusher, "_withdraw", withdrawn)]
