"""Reads one table's current rows in pages, from the buffer or from a checkpoint.

The result is the rows that one client may see, as deltas that merge to them.
"""

from __future__ import annotations

import re
from itertools import chain, islice
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from lakesync.core.clock import VISIBLE_MS_MAX, stamp
from lakesync.core.messages import Progress
from lakesync.errors import Contention, CursorExpired, ValidationFailed
from lakesync.gateway.records import NO_RECORDS, Records
from lakesync.log.final_log import read_all
from lakesync.wire.records import decode_records, encode_records
from lakesync.wire.row_records import row_runs
from lakesync.wire.row_state import decode_row_state

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lakesync.checkpoint.manifest import Manifest
    from lakesync.checkpoint.store import Checkpoints
    from lakesync.core.clock import Stamp
    from lakesync.core.config import GatewayConfig
    from lakesync.gateway.rule_filter import RuleFilter
    from lakesync.log.final_log import FinalLog
    from lakesync.ports import Buffer, RowSlice

_LOG_DELTAS_MAX: Final = 10_000
_IN_CHECKPOINT: Final = re.compile(r"([0-9]{1,9}):([0-9]{1,9})")


class Rows(NamedTuple):
    """Some rows of a table."""

    records: Records
    position: str
    """The position of the next rows; empty at the end."""
    newest: Stamp = 0
    """The latest commit that wrote one of the rows; 0 if unknown."""


class RowSource(Protocol):
    """A source of rows."""

    def read(self, table: str, position: str, deltas_max: int, bytes_max: int) -> Rows:
        """Return whole rows of a table from a position (empty: from the first); at least one.

        Raises:
            ValidationFailed: there is no such position.
        """
        ...


class BufferRows:
    """Reads rows as they are in the buffer, for one request.

    A commit of many items becomes visible item by item, so a row may be read as it was before a
    commit. The client then gets the change, or the row's removal, from the log. But log entries
    that are older than the rules may lack the columns that decide this. So a row that such an entry
    wrote is returned only once the written version is visible.
    """

    def __init__(self, buffer: Buffer, log: FinalLog, rule_filter: RuleFilter) -> None:
        self._buffer = buffer
        self._log = log
        self._rule_filter = rule_filter

    def read(self, table: str, position: str, deltas_max: int, bytes_max: int) -> Rows:
        """Return rows; see `RowSource.read`.

        Cost: for a minute after rules first use a column, the log of the minute before that is read
        too.

        Raises:
            Contention: a row is becoming visible; try again in a moment.
        """
        if position[:1] not in {"", *"0123456789abcdef"}:
            raise ValidationFailed("the buffer has no such position", field="snapshot")
        rows_max = deltas_max
        while True:
            piece = self._buffer.scan_rows(self._log.gateway, table, position, rows_max)
            self._check_written(table, piece)
            runs: list[bytes] = []
            deltas = size = 0
            for number, (row_id, stored) in enumerate(piece.rows):
                row = self._rule_filter.row(table, row_id, decode_row_state(stored.state))
                run = encode_records(row) if row else b""
                size += len(run)
                if deltas and size > bytes_max:
                    rows_max = number  # read fewer: only the end of a slice is a position
                    break
                deltas += len(row)
                runs.append(run)
            else:
                newest = max((row.commit for _, row in piece.rows), default=0)
                records = Records((b"".join(runs),), deltas) if deltas else NO_RECORDS
                return Rows(records, piece.place, newest)

    def _check_written(self, table: str, piece: RowSlice) -> None:
        log, undecided_until = self._log, self._log.config.logged.since
        every_row = self._rule_filter.viewer.sees_rows_of(table)
        if every_row or log.top > undecided_until + stamp(VISIBLE_MS_MAX):
            return
        written: dict[str, Stamp] = {}
        after = max(undecided_until - stamp(VISIBLE_MS_MAX), log.trimmed)
        for entry in read_all(self._buffer, log, (after, undecided_until), _LOG_DELTAS_MAX):
            for delta in decode_records(entry.records) if table in entry.tables else ():
                if delta.table == table:
                    written[delta.row_id] = max(entry.stamp, written.get(delta.row_id, 0))
        if any(row.commit < written.get(row_id, 0) for row_id, row in piece.rows):
            raise Contention("a row is becoming visible; try again in a moment")


class CheckpointRows:
    """Reads rows from a checkpoint, for one request. A fully visible part is not decoded.

    A position is the number of a part in its table, and how many of the part's deltas were read.
    """

    def __init__(
        self, checkpoints: Checkpoints, manifest: Manifest, rule_filter: RuleFilter
    ) -> None:
        self._checkpoints = checkpoints
        self._manifest = manifest
        self._rule_filter = rule_filter
        self.bytes_read = 0

    def read(self, table: str, position: str, deltas_max: int, bytes_max: int) -> Rows:
        """Return rows; see `RowSource.read`.

        Raises:
            CursorExpired: the checkpoint is no longer kept.
        """
        match = _IN_CHECKPOINT.fullmatch(position or "0:0")
        chunks = self._manifest.tables.get(table)
        number, read = (int(match[1]), int(match[2])) if match else (0, 0)
        place = chunks.place(number) if match and chunks else None
        if chunks is None or place is None or read >= place.part.deltas:
            raise ValidationFailed("the checkpoint has no such part", field="snapshot")
        run = self._checkpoints.part(self._manifest.gateway, self._manifest.id, place)
        self.bytes_read += len(run)
        following = f"{number + 1}:0" if number + 1 < chunks.parts else ""
        fits = not read and place.part.deltas <= deltas_max and len(run) <= bytes_max
        if fits and self._rule_filter.sees_everything:
            return Rows(Records((run,), place.part.deltas), following)
        runs: list[bytes] = []
        deltas = size = at = 0
        columns = self._rule_filter.columns(table)
        for row in row_runs(run, columns, delete_wins=self._rule_filter.delete_wins(table)):
            if at >= read:
                visible = self._rule_filter.row_run(table, row)
                size += visible.size_bytes
                if deltas and (deltas >= deltas_max or size > bytes_max):
                    return Rows(Records(tuple(runs), deltas), f"{number}:{at}")
                runs += visible.runs
                deltas += visible.deltas
            at += row.deltas
        return Rows(Records(tuple(runs), deltas), following)

    def progress(self, before: Iterable[str], table: str, position: str) -> Progress:
        """Return the progress: all rows of some tables, and those of this one up to a position.

        Cost: a loop over the parts in the manifest, which is in memory.
        """
        tables = self._manifest.tables
        match = _IN_CHECKPOINT.fullmatch(position)
        read = sum(tables[name].rows for name in before)
        if match and table in tables:
            parts = chain.from_iterable(chunk.parts for chunk in tables[table].chunks)
            read += sum(part.rows for part in islice(parts, int(match[1])))
        return Progress(read, sum(chunks.rows for chunks in tables.values()))


def decides(manifest: Manifest, config: GatewayConfig, rule_filter: RuleFilter) -> bool:
    """Return whether the log after a checkpoint shows for each row when it becomes hidden.

    Log entries contain only the columns that rules used at that time. So a client that does not see
    every row could keep rows that were hidden between the checkpoint and the current rules.
    """
    return rule_filter.viewer.sees_every_row or manifest.since >= config.logged.since


def check_decides(manifest: Manifest, config: GatewayConfig, rule_filter: RuleFilter) -> None:
    """Refuse a checkpoint that is older than the rules in force; see `decides`.

    Raises:
        CursorExpired: it is older.
    """
    if not decides(manifest, config, rule_filter):
        raise CursorExpired(
            "your rules look at columns that the checkpoint lacks; begin again", field="scope"
        )
