"""Stored copies of a row's values: counted, and erased in the lake and among attachments.

Every store that can contain the row is read in full: the log from its beginning, all chunks of
checkpoints, all batches, what connectors keep, all snapshots of the lake. It takes the operator's
own credentials. The lake's part is asked of the stack's job.

Rules for attachments
    1. A file is removed before that is which tells of it: the log and checkpoints, then the lake's
       history. So who was killed is followed by one that comes upon it again.
    2. A file that another row refers to stays, and is named.

Law E11: ``docs/spec/erasure.md``.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from lakesync.checkpoint import store as names
from lakesync.cli.lake_tables import run_job
from lakesync.connectors.state import kept_of_row
from lakesync.core.attachments import SCHEME, references_in
from lakesync.core.delta import Op, parse
from lakesync.core.names import CHANGES_SUFFIX
from lakesync.core.wording import plural
from lakesync.errors import NotFound
from lakesync.gateway.attachments import file_key
from lakesync.wire.records import decode_records, decode_row_state

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from lakesync.analysis.lake import Lake
    from lakesync.analysis.lake_queries import LakeChanges
    from lakesync.cli.session import Session
    from lakesync.core.delta import CanonicalJson
    from lakesync.ports import Buffer, ObjectStore, RowKey

# --- copies ---------------------------------------------------------------------------------------


_SLICE_DELTAS_MAX: Final = 10_000


def copies(
    gateway: str, key: RowKey, buffer: Buffer, objects: ObjectStore, lake: Lake | None
) -> dict[str, int]:
    """Count the objects and items with values of a row, by store; deletions have none."""
    state = buffer.rows(gateway, [key]).get(key)
    counts = {
        "row": int(state is not None and bool(decode_row_state(state.state).columns)),
        "log": sum(_in_run(run, key) for run in logged_runs(gateway, buffer)),
        "checkpoints": sum(
            _in_run(run, key) for run in checkpointed_runs(objects, gateway, key[0])
        ),
        "batches": sum(_in_batch(body, key) for body in _batches(objects, gateway, key[0])),
        "connectors": kept_of_row(objects, gateway, key),
    }
    if lake is not None:
        counts["lake"] = lake.copies(key[0], key[1])
        counts["lake changes"] = lake.copies(key[0] + CHANGES_SUFFIX, key[1])
    return counts


def logged_runs(gateway: str, buffer: Buffer) -> Iterator[bytes]:
    """Yield every run in the log and in heads, trimmed or not."""
    for lane, head in buffer.all_heads(gateway).items():
        yield from (entry.records for entry in head.recent)
        after = 0
        while after < head.stored_until:
            part = buffer.entries(gateway, lane, after, head.stored_until, _SLICE_DELTAS_MAX)
            yield from (entry.records for entry in part.entries)
            after = part.until


def checkpointed_runs(objects: ObjectStore, gateway: str, table: str) -> Iterator[bytes]:
    """Yield every run of a table in chunks, whether a manifest names them or not."""
    for key in objects.list_objects(names.chunks_prefix(gateway)):
        if key.rpartition("/")[2].rsplit("-", 2)[0] != table:
            continue
        body = _body(objects, key)
        at = 0
        while at < len(body):
            begin = at + names.FRAME_HEAD_BYTES
            at = begin + int.from_bytes(body[at:begin], "big")
            yield body[begin:at]


def _batches(objects: ObjectStore, gateway: str, table: str) -> Iterator[bytes]:
    for key in objects.list_objects(f"staging/{gateway}/{table}/"):
        yield _body(objects, key)


def _body(objects: ObjectStore, key: str) -> bytes:
    try:
        return objects.get_object(key)
    except NotFound:
        return b""  # removed since it was listed


def _in_run(run: bytes, key: RowKey) -> int:
    return sum(
        (delta.table, delta.row_id) == key and delta.op is not Op.DELETE
        for delta in decode_records(run)
    )


def _in_batch(body: bytes, key: RowKey) -> int:
    if not body:
        return 0
    from lakesync.adapters.lake.parquet import batch_table

    rows = batch_table(body).select(["_row_id", "_op"]).to_pylist()
    return sum(row["_row_id"] == key[1] and row["_op"] != Op.DELETE.name for row in rows)


# --- the lake -------------------------------------------------------------------------------------


def lake_changes(session: Session, gateway: str, table: str) -> LakeChanges:
    from lakesync.analysis.lake import Lake
    from lakesync.analysis.lake_queries import LakeChanges

    return LakeChanges(Lake(session.aws, gateway), table)


def erase_from_lake(
    session: Session, objects: ObjectStore, gateway: str, keys: Sequence[RowKey], timeout_s: float
) -> dict[str, Any]:
    """Have rows of one table erased from the lake and from old versions; return the job's report.

    The rows are named in an object, which the job removes at its end: arguments of Glue jobs are
    shown to everybody who may look at them. Each erasure has one of its own, so that two of the
    same rows at once take nothing from each other. Safe to repeat.
    """
    table = keys[0][0]
    body = json.dumps({"rows": sorted(row for _, row in keys)}).encode()
    request = f"maintenance/erase-{uuid4().hex}.json"
    objects.put_object(request, body, "application/json")
    return run_job(session, f"{gateway}/{table}", timeout_s, {"--erase_key": request})


def left_in_lake(report: dict[str, Any]) -> dict[str, int]:
    return {
        "lake": sum(table["left"] for table in report["tables"]),
        "old versions": report["versionsLeft"],
    }


def remarks(report: dict[str, Any]) -> Iterator[str]:
    files = sum(table["files"] for table in report["tables"])
    removed = sum(table["removed"] for table in report["tables"])
    yield (
        f"the lake: {plural(removed, 'change')} removed, {plural(files, 'file')} looked into; "
        f"{plural(report['versionsRemoved'], 'old version')} removed"
    )
    if not report["tables"]:
        yield "the lake has no table of that name that is this stack's: nothing was looked into"
    for table in report["tables"]:
        if table["keptBy"]:
            names = ", ".join(table["keptBy"])
            yield f"{table['table']}: {names} may keep earlier files: drop it, and repeat this"
    if report["againMs"]:
        at = datetime.fromtimestamp(report["againMs"] / 1000, UTC)
        yield (
            "files that no snapshot names may still become named: from "
            f"{at:%Y-%m-%dT%H:%M}Z on the same command removes them"
        )


# --- attachments ----------------------------------------------------------------------------------


_MARK: Final = SCHEME.encode()
"""Text that the JSON of every reference to a file contains."""
_SLICE_ROWS_MAX: Final = 1_000


class AttachmentErasure:
    """Removes the files of rows of one table. Every step may be repeated.

    Args:
        buffer: stores the rows.
        objects: stores files, checkpoints and batches.
    """

    def __init__(
        self, buffer: Buffer, objects: ObjectStore, gateway: str, keys: Sequence[RowKey]
    ) -> None:
        self._buffer = buffer
        self._objects = objects
        self._gateway = gateway
        self._table = keys[0][0]
        self._keys = frozenset(keys)
        self._files: set[str] = set()
        self.removed: set[str] = set()
        """Names of files that were removed."""
        self.shared: set[str] = set()
        """Names of files that stay, because other rows refer to them."""

    def look_into_rows(self) -> None:
        for stored in self._buffer.rows(self._gateway, self._keys).values():
            self._files |= _files_of(stored.state)

    def look_into_past(self) -> None:
        for runs in (
            logged_runs(self._gateway, self._buffer),
            checkpointed_runs(self._objects, self._gateway, self._table),
        ):
            for run in runs:
                if _MARK in run:
                    self._note(decode_records(run))

    def look_into_lake(self, changes: LakeChanges) -> None:
        from pyiceberg.expressions import In

        make: Any = In  # its own type knows nothing of positions
        rows = [row for _, row in sorted(self._keys)]
        for batch in changes.scan(make("_id", rows)):
            self._note(placed.delta for placed in changes.placed(batch))

    def _note(self, deltas: Iterable[Any]) -> None:
        for delta in deltas:
            if (delta.table, delta.row_id) in self._keys:
                self._files |= _files_in(value for _, value in delta.columns)

    def remove(self) -> None:
        """Remove the collected files, except those that other rows refer to."""
        there = {name for name in self._files if self._is_there(name)}
        self.shared = self._shared(there) if there else set()
        for name in there - self.shared:
            self._objects.delete_object(self._key(name))
            self.removed.add(name)

    def left(self) -> int:
        return sum(map(self._is_there, self._files - self.shared))

    def remarks(self) -> Iterator[str]:
        """Report which files were removed, which were not, and why."""
        if self.removed:
            yield f"removed: {', '.join(map(self._key, sorted(self.removed)))}"
        if self.shared:
            names = ", ".join(map(self._key, sorted(self.shared)))
            yield f"not removed, as other rows refer to it: {names}"

    def _key(self, name: str) -> str:
        return file_key(self._gateway, name)

    def _is_there(self, name: str) -> bool:
        key = self._key(name)
        return key in self._objects.list_objects(key)

    def _shared(self, names: set[str]) -> set[str]:
        """Return which of the given files other rows refer to. Reads every row of the gateway."""
        shared: set[str] = set()
        for table in self._tables():
            for row_id, state in self._rows(table):
                if (table, row_id) not in self._keys:
                    shared |= names & _files_of(state)
        return shared

    def _tables(self) -> list[str]:
        config = self._buffer.config(self._gateway)
        flushed = self._buffer.flushed_tables(self._gateway)
        return sorted({*config.tables, *config.schemas, *flushed})

    def _rows(self, table: str) -> Iterator[tuple[str, bytes]]:
        place = ""
        while True:
            part = self._buffer.scan_rows(self._gateway, table, place, _SLICE_ROWS_MAX)
            for row_id, stored in part.rows:
                yield row_id, stored.state
            place = part.place
            if not place:
                return


def _files_of(state: bytes) -> set[str]:
    if _MARK not in state:
        return set()
    columns = decode_row_state(state).columns.values()
    return _files_in(value for _, _, value in columns)


def _files_in(values: Iterable[CanonicalJson]) -> set[str]:
    marked = (value for value in values if _MARK in value)
    return {file.file_name for value in marked for file in references_in(parse(value))}
