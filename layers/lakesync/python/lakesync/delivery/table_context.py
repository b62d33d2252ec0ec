"""The context of work on one table of a destination: its stores, its database, what it receives.

A destination with filters receives rows, not deltas: a delta does not show whether its row was
visible before. Each row that a batch touches is read as it is now. If the destination may see it,
it receives the whole row; otherwise its copy of the row is removed. If a row is read too early, the
batch of the missed commit corrects it. If a row is not yet visible as its batch wrote it, delivery
waits. Law D10: ``docs/spec/delivery.md``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Final

from lakesync.adapters.database import PlacedDelta, TableBatch
from lakesync.core.clock import VISIBLE_MS_MAX, stamp_ms
from lakesync.core.column_map import map_delta, map_state
from lakesync.core.deliveries import DeliveryPlace
from lakesync.core.merge import RowState, as_read, view
from lakesync.core.visibility import rule_columns
from lakesync.errors import Contention
from lakesync.wire.records import decode_row_state

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from lakesync.adapters.database import DestinationDatabase, RowImages
    from lakesync.adapters.history_archive import HistoryArchive
    from lakesync.core.clock import Stamp
    from lakesync.core.config import GatewayConfig
    from lakesync.core.deliveries import Batch
    from lakesync.core.delta import Delta
    from lakesync.core.destinations import Destination
    from lakesync.core.schema import TableSchema
    from lakesync.ports import Buffer, ObjectStore, Rows, StoredRow, WallClock

    ReadBatch = Callable[[bytes, Batch], list[PlacedDelta]]

# --- the context ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class TableContext:
    """One table of one destination, and the stores."""

    buffer: Buffer
    objects: ObjectStore
    read_batch: ReadBatch
    database: DestinationDatabase
    gateway: str
    destination: Destination
    table: str
    wall_clock: WallClock
    open_archive: Callable[[str, Destination], HistoryArchive] | None = None

    @property
    def place(self) -> DeliveryPlace:
        return DeliveryPlace(self.gateway, self.destination.name, self.table)

    @cached_property
    def config(self) -> GatewayConfig:
        return self.buffer.config(self.gateway)

    @cached_property
    def images(self) -> Images:
        """The table's rows, as the destination may see them."""
        return Images(
            self.buffer, self.gateway, self.destination, self.table, self.visible_in_ms,
            delete_wins=self.delete_wins,
        )  # fmt: skip

    @property
    def delete_wins(self) -> bool:
        """Whether no update restores a deleted row of the table."""
        return self.config.delete_wins(self.table)

    def horizon(self) -> Stamp:
        """Return the horizon of the table's deletions, to be asked after rows were read.

        It rises before a deletion is forgotten. So it covers every one that those rows lack.
        """
        return self.buffer.config(self.gateway).tombstone_horizons.get(self.table, 0)

    def schema(self) -> TableSchema | None:
        return self.destination.schema_of(self.table, self.config.schemas.get(self.table))

    def mark(self) -> Stamp:
        return self.database.mark(self.table).unwrap()

    def deltas_of(self, batch: Batch) -> tuple[list[PlacedDelta], int]:
        """Read a batch's deltas; returns the bytes of its object too.

        Raises:
            NotFound: its object is gone.
            ValidationFailed: its object does not belong to this batch.
        """
        body = self.objects.get_object(batch.object_key)
        return self.read_batch(body, batch), len(body)

    def put_deltas(self, batch: Batch, deltas: Sequence[PlacedDelta]) -> int:
        """Write the deltas of a batch that the destination may see; returns how many are new."""
        column_map = self.destination.map_of(self.table)
        shown = [
            PlacedDelta(
                one.position, map_delta(column_map, one.delta, delete_wins=self.delete_wins)
            )
            for one in deltas
            if self.images.shows_event(one.delta)
        ]
        schema = self.destination.schema_of(self.table, batch.schema)
        taken = TableBatch(self.table, batch.after, batch.last, shown, schema)
        return self.database.insert_deltas(taken).unwrap().deltas

    def put_rows(self, images: RowImages) -> int:
        """Write rows as the destination may have them; returns how many it accepted."""
        rows = {row_id: state if state is None else self._mapped(state)
                for row_id, state in images.rows.items()}  # fmt: skip
        return self.database.put_rows(replace(images, rows=rows)).unwrap().rows

    def mapped_otherwise(self, images: Mapping[str, RowState | None]) -> list[str]:
        """Return those rows whose values at the destination another map made.

        If they were merged, a column that this map hides would remain there.
        """
        stored = self.database.rows_of(self.table, [*images]).unwrap()
        return [
            row_id
            for row_id, there in stored.items()
            if (state := images[row_id]) is not None and _differs(there, self._mapped(state))
        ]

    def _mapped(self, state: RowState) -> RowState:
        column_map = self.destination.map_of(self.table)
        return map_state(column_map, state, delete_wins=self.delete_wins)

    def visible_in_ms(self, commit: Stamp) -> int:
        """Return after how long a commit is certainly visible in all its parts; 0 if it is."""
        return max(0, stamp_ms(commit) + VISIBLE_MS_MAX - self.wall_clock())

    def archive(self) -> HistoryArchive | None:
        """Open the destination's archive, if it has one."""
        if self.destination.archive is None or self.open_archive is None:
            return None
        return self.open_archive(self.gateway, self.destination)

    def check_declared(self) -> None:
        """Refuse to continue if the declaration of the destination has changed, or it is paused.

        Raises:
            Contention: it was removed, declared again or paused in the meantime.
        """
        if self.buffer.destinations(self.gateway).by_name.get(self.destination.name) != (
            self.destination
        ):
            raise Contention(f"the destination {self.destination.name} was changed meanwhile")


def _differs(there: RowState, wanted: RowState) -> bool:
    """Return whether a merge would keep a column that the wanted row lacks, or has differently.

    A newer value there is no difference: it has the same origin as the wanted row.
    """
    return any(
        name not in wanted.columns
        or (register[:2] == wanted.columns[name][:2] and register != wanted.columns[name])
        for name, register in there.columns.items()
        if register[0] > wanted.deleted
    )


# --- rows for a filtered destination --------------------------------------------------------------


IMAGES_MAX: Final = 250
"""Rows that are read at a time: nearly always at most 1 MB, although a row may have 380 KB."""


class Images:
    """The rows of one table that one destination may see."""

    def __init__(
        self,
        rows: Rows,
        gateway: str,
        destination: Destination,
        table: str,
        visible_in_ms: Callable[[Stamp], int],
        *,
        delete_wins: bool,
    ) -> None:
        self._rows = rows
        self._visible_in_ms = visible_in_ms
        self._gateway = gateway
        self._table = table
        self._viewer = destination.viewer()
        self._columns = destination.rows.columns(table)
        self.is_filtered = destination.is_filtered(table)
        # Only rows that are sent whole each time may lack columns that a later insert shows again.
        self._delete_wins = delete_wins and self.is_filtered

    def of(self, wanted: Mapping[str, Stamp]) -> dict[str, RowState | None]:
        """Read rows; None for those that do not exist, or that the destination may not see.

        Args:
            wanted: the rows, each with a commit that wrote it; 0 for none.

        Raises:
            Contention: a row is not visible yet; try again after `retry_after_s`.
        """
        stored = self._rows.rows(self._gateway, [(self._table, row_id) for row_id in wanted])
        read = {row_id: row for (_, row_id), row in stored.items()}
        early = [commit for row_id, commit in wanted.items()
                 if row_id not in read or read[row_id].commit < commit]  # fmt: skip
        if wait_ms := self._visible_in_ms(max(early, default=0)):
            raise becoming_visible(wait_ms)
        return dict.fromkeys(wanted) | self.decided(read)

    def decided(self, stored: Mapping[str, StoredRow]) -> dict[str, RowState | None]:
        """Return rows, with None for hidden ones; deleted rows are kept, to be deleted there."""
        states = {
            row_id: as_read(decode_row_state(row.state), delete_wins=self._delete_wins)
            for row_id, row in stored.items()
        }
        return {
            row_id: state if self._is_shown(state) else None for row_id, state in states.items()
        }

    def of_events(self, rows: Mapping[str, RowState]) -> dict[str, RowState | None]:
        """Return rows of an append table, each a complete event, with None for hidden ones."""
        return {row_id: state if self._is_shown(state) else None for row_id, state in rows.items()}

    def shows_event(self, delta: Delta) -> bool:
        """Return whether the destination may see a row of an append table, by its only delta."""
        return not self.is_filtered or self._viewer.sees(
            self._table, rule_columns(delta.columns, self._columns)
        )

    def _is_shown(self, state: RowState) -> bool:
        row = view(state)
        if row is None or not self.is_filtered:
            return True
        return self._viewer.sees(self._table, rule_columns(row.items(), self._columns))


def becoming_visible(wait_ms: int) -> Contention:
    """Return the error for rows that may not be visible yet."""
    return Contention(
        "what was just committed is becoming visible; try again in a moment",
        retry_after_s=-(-wait_ms // 1000),
    )
