"""Iceberg tables as a database, in any catalogue: read and written by flows and copies.

`IcebergDatabase` is `DatabaseAdapter` and `Materialisable`. Each table is a state table and a
changes table, laid out like those of a stack's lake, so the lake itself can be read in the same
way. Intended for tables of some hundred thousand rows: changing a row rewrites its file.

Rules of this module
    1. A write puts its files first, then its history, and last the commit of the state table, which
       names the history. Only one writer can make that commit, and until then nothing is visible.
    2. Of two commits from one snapshot the catalogue refuses one. What that one wrote is not part
       of the table.
    3. Tables of a stack's lake are read, and never written.

Tables that others write are read from the files that their snapshots name. A snapshot's rows are
those of its data files, without the rows that its delete files remove. So files that two snapshots
have in common need not be read, whichever writer made them.

Laws P1-P3, P14: ``docs/spec/databases.md``.
"""

from __future__ import annotations

import json
import re
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import parse_qs, urlsplit

from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.manifest import ManifestContent, ManifestEntryStatus
from pyiceberg.table import FileScanTask
from pyiceberg.table.snapshots import Operation
from pyiceberg.types import DecimalType

from lakesync.adapters.connect import ENDPOINT
from lakesync.adapters.database import ADDED, ALL, CHANGED, GONE, SAME, NamedColumn, SnapshotStep
from lakesync.adapters.database_types import DatabaseType
from lakesync.adapters.file_database import FileDatabase, FileTables, Head, forgetting
from lakesync.adapters.ledger_database import check_refused, old_until
from lakesync.errors import AdapterRefused, CursorExpired, ValidationFailed
from lakesync.materialise.iceberg_table import FILE_IO, StagedTransaction
from lakesync.materialise.lake_catalogue import LakeCatalogue, LakePlace, asking
from lakesync.materialise.lake_schema import COMMIT
from lakesync.systems.iceberg.state_table import Leaves, Remembered, StateFiles, follow_definition
from lakesync.systems.iceberg.table_pair import (
    CHANGES,
    DEFINITION,
    FORGOTTEN,
    REFUSED_ROWS,
    commit,
    history_rows,
    loaded,
    made,
    table_names,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table, Transaction
    from pyiceberg.table.snapshots import Snapshot

    from lakesync.adapters.database import PlacedDelta
    from lakesync.adapters.database_types import DatabasePlace
    from lakesync.adapters.sql.ledger import Definition
    from lakesync.core.clock import Stamp
    from lakesync.core.merge import RowState
    from lakesync.core.schema import TableSchema
    from lakesync.materialise.lake_schema import LakeColumn
    from lakesync.systems.iceberg.table_pair import Pair


class IcebergDatabase(FileDatabase):
    """One gateway's deltas and rows in one catalogue. Not thread-safe.

    Args:
        place: the catalogue, and the place in it.
        history_ms: the greatest age of history that is kept; None keeps all.
    """

    def __init__(self, place: LakePlace, gateway: str, *, history_ms: int | None = None) -> None:
        super().__init__(IcebergTables(place, gateway, history_ms))
        self._place = place

    def snapshots_of(self, name: str) -> PlainTable:
        """Return a table that others write; `lakesync.adapters.database.HasSnapshots`."""
        return PlainTable(self._place, name)


class IcebergTables(FileTables):
    """The tables of one gateway, or of one of its flows.

    Args:
        history_ms: how old history may be that is kept; None keeps all.
    """

    def __init__(self, place: LakePlace, keeper: str, history_ms: int | None) -> None:
        super().__init__()
        self._place = place
        self._keeper = keeper
        self._history_ms = history_ms
        self._schemas: dict[str, TableSchema | None] | None = None
        """Kept until something is written: every table asks for it."""

    def opened(self, table: str) -> tuple[LakeTable, LakeTable]:
        one = LakeTable(self._place, self._keeper, table, self._history_ms, self._look_again)
        return one, one

    def names(self) -> list[str]:
        with asking():
            return table_names(self._place, self._keeper)

    def begin(self, table: str) -> None:
        """Make a table that does not exist yet. Idempotent."""
        with asking():
            made(self._place, self._keeper, table)
        self._look_again()

    def schemas(self) -> dict[str, TableSchema | None]:
        if self._schemas is None:
            self._schemas = super().schemas()
        return self._schemas

    def forget(self) -> None:
        super().forget()
        self._look_again()

    def _look_again(self) -> None:
        self._schemas = None


# --- one table ------------------------------------------------------------------------------------


def _location(pair: Pair | None) -> str:
    """Return where the metadata of a table's state is; empty before it was looked at."""
    return pair.state.metadata_location if pair else ""


_NOT_LOOKED_AT: Final = "a table is looked at before it is read or written"


class _Pending(NamedTuple):
    """A write whose files exist already."""

    transaction: Transaction
    columns: tuple[LakeColumn, ...]
    definition: Definition
    leaves: Leaves
    deltas: Sequence[PlacedDelta]


class LakeTable:
    """One table; `lakesync.adapters.file_database.TableHeads` and `TableFiles`.

    Args:
        history_ms: how old history may be that is kept; None keeps all.
        changed: called when it is another than it was.
    """

    def __init__(
        self,
        place: LakePlace,
        keeper: str,
        table: str,
        history_ms: int | None,
        changed: Callable[[], None],
    ) -> None:
        self._place = place
        self._keeper = keeper
        self._table = table
        self._history_ms = history_ms
        self._changed = changed
        self._remembered = Remembered()
        self._pair: Pair | None = None
        self._files: tuple[str, StateFiles] | None = None
        self._pending: list[_Pending] = []

    def newest(self) -> Head:
        with asking():
            before, self._pair = self._pair, loaded(self._place, self._keeper, self._table)
            if self._pair and _location(before) not in {"", _location(self._pair)}:
                self._changed()  # by another process: its schema may be another
            if self._pair is None:
                return Head()
            head = self._pair.head(self._table)
            history = self._pair.history
            is_lost = history is not None and history.is_lost
            return forgetting(head, head.mark) if is_lost else head

    def states(self, head: Head, row_ids: Sequence[str]) -> dict[str, RowState]:
        """Return the states of rows; missing rows are left out."""
        if not head.version:
            return {}
        with asking():
            return self._state_files().states(row_ids)

    def states_after(self, head: Head, row_id: str, count: int) -> dict[str, RowState]:
        if not head.version:
            return {}
        with asking():
            return self._state_files().states_after(row_id, count)

    def commits(self, head: Head, after: Stamp) -> list[tuple[Stamp, bytes]]:
        with asking():
            history = self._pair.history if self._pair is not None else None
            if history is None:
                return []
            return history.commits(self._table, max(after, head.forgotten), head.mark)

    def count(self, head: Head) -> int:
        """Count the rows, including those that are hidden from readers."""
        with asking():
            return self._state_files().count() if head.version else 0

    def written(
        self,
        head: Head,
        definition: Definition,
        deltas: Sequence[PlacedDelta],
        states: Mapping[str, RowState | None],
        *,
        anew: bool = False,
    ) -> Head:
        """Put the files of the next head; see `lakesync.adapters.file_database.TableFiles`."""
        with asking():
            self._pair = self._pair or made(self._place, self._keeper, self._table)
            if self._pair.keeper != self._keeper:
                raise AdapterRefused(
                    f"{self._table} is a table of a stack's lake, which its own jobs write: name "
                    "another prefix in the URL"
                )
            transaction = StagedTransaction(self._pair.state)
            columns = follow_definition(transaction, definition)
            files = self._state_files()
            now = datetime.now(UTC).replace(microsecond=0)
            leaves = Leaves(self._pair.state, transaction.table_metadata, files, definition,
                            columns, head.mark, now)  # fmt: skip
            leaves.write(states, anew=anew)
        refused = {one: why for one, why in head.refused.items() if one not in states}
        if anew:
            refused = {}
        refused |= leaves.refused
        check_refused(self._table, refused.values())
        self._pending = [_Pending(transaction, columns, definition, leaves, deltas)]
        forgotten = max(head.forgotten, self._old(head) if deltas else 0)
        text = definition.to_json()
        return replace(head, version=1, refused=refused, definition=text, forgotten=forgotten)

    def follow(self, head: Head, before: Head) -> None:
        del before  # the transactions begin at it
        pending = self._pending.pop()
        self._changed()
        with asking():
            named = self._history_follows(pending, head)
            transaction, leaves = pending.transaction, pending.leaves
            if transaction.table_metadata.properties.get(DEFINITION) != head.definition:
                transaction.set_properties({DEFINITION: head.definition})
            said = {
                COMMIT: str(head.mark),
                CHANGES: str(named),
                FORGOTTEN: str(head.forgotten),
                REFUSED_ROWS: json.dumps(dict(head.refused)),
            }
            commit(self._there().state, transaction, leaves.made, leaves.replaced, said)

    def _history_follows(self, pending: _Pending, head: Head) -> int:
        """Put the history of a write; returns the snapshot that names it, 0 for none."""
        pair = self._there()
        if pair.changes is None:
            pair = self._pair = made(self._place, self._keeper, self._table)
        changes, history = pair.changes, pair.history
        if changes is None or history is None:
            raise LookupError(_NOT_LOOKED_AT)
        transaction = StagedTransaction(changes)
        columns = follow_definition(transaction, pending.definition, pending.columns)
        rows = list(history_rows(pending.deltas, columns, datetime.now(UTC).replace(microsecond=0)))
        stray, put_back = history.unnamed()
        added, gone = history.followed(transaction.table_metadata, rows, head.forgotten)
        if not (added or gone or stray or put_back):
            return pair.named or 0
        back = [one for one in put_back if one not in gone]
        going = [*stray, *(one for one in gone if one not in put_back)]
        said = {COMMIT: str(head.mark)}
        return commit(changes, transaction, [*added, *back], going, said)

    def _old(self, head: Head) -> Stamp:
        """Return the commit up to which the history before a write is too old to be kept."""
        until = old_until(head.mark, self._history_ms)
        with asking():
            history = self._there().history
            return history.last_until(until) if history is not None and until else 0

    def _there(self) -> Pair:
        if self._pair is None:
            raise LookupError(_NOT_LOOKED_AT)
        return self._pair

    def _state_files(self) -> StateFiles:
        state = self._there().state
        if self._files is None or self._files[0] != state.metadata_location:
            self._files = (state.metadata_location, StateFiles(state, self._remembered))
        return self._files[1]


# --- tables of other writers ----------------------------------------------------------------------


_TYPES: Final[Mapping[str, str]] = {
    "int": "integer", "long": "integer", "float": "number", "double": "number",
    "boolean": "boolean", "date": "date", "timestamp": "timestamp", "timestamptz": "timestamp",
    "binary": "bytes", "string": "string", "uuid": "string", "time": "string",
}  # fmt: skip


class PlainTable:
    """`lakesync.adapters.database.SnapshotTable` of Iceberg."""

    def __init__(self, place: LakePlace, name: str) -> None:
        self._place = place
        self._name = name
        self._loaded: Table | None = None

    def columns(self) -> list[NamedColumn]:
        schema = self._table(anew=True).schema()
        return [
            NamedColumn(one.name, _type_of(one.field_type), not one.required)
            for one in schema.fields
        ]

    def steps(self, since: int) -> list[SnapshotStep]:
        table = self._table(anew=True)
        newest = table.current_snapshot()
        if newest is None or newest.snapshot_id == since:
            return []
        if not since:
            return [SnapshotStep(0, newest.snapshot_id, newest.timestamp_ms, ALL)]
        way: list[Snapshot] = []
        one: Snapshot | None = newest
        while one is not None and one.snapshot_id != since:
            way.append(one)
            parent = one.parent_snapshot_id
            one = None if parent is None else table.snapshot_by_id(parent)
        if one is None:
            if table.snapshot_by_id(since) is None:
                raise CursorExpired(f"{self._name}: the snapshot that was read last has expired")
            return [SnapshotStep(since, newest.snapshot_id, newest.timestamp_ms, CHANGED)]
        steps = [
            SnapshotStep(one.parent_snapshot_id or 0, one.snapshot_id, one.timestamp_ms, _kind(one))
            for one in reversed(way)
        ]
        if any(step.kind == CHANGED for step in steps):
            # In one step: a replaced row may be missing in a snapshot between, in the same commit.
            return [SnapshotStep(since, newest.snapshot_id, newest.timestamp_ms, CHANGED)]
        return steps

    def rows(
        self, step: SnapshotStep, names: Sequence[str], *, left: bool = False, skipped: int = 0
    ) -> Iterator[tuple[Any, ...]]:
        tasks = self._tasks(step, left=left)
        if not tasks:
            return
        table = self._table()
        wanted = table.schema().select(*names)
        scan = ArrowScan(table.metadata, table.io, wanted, AlwaysTrue())
        for task in tasks:
            if skipped >= task.file.record_count and not task.delete_files:
                skipped -= task.file.record_count
                continue
            for row in self._of(scan, task, names):
                if skipped:
                    skipped -= 1
                else:
                    yield row

    def count(self, step: SnapshotStep, *, left: bool = False) -> int:
        return sum(task.file.record_count for task in self._tasks(step, left=left))

    def _of(
        self, scan: ArrowScan, task: FileScanTask, names: Sequence[str]
    ) -> Iterator[tuple[Any, ...]]:
        with asking(), self._expiring():
            for batch in scan.to_record_batches([task]):
                yield from zip(*(batch.column(name).to_pylist() for name in names), strict=True)

    def _tasks(self, step: SnapshotStep, *, left: bool) -> list[FileScanTask]:
        if step.kind == SAME or (left and step.kind != CHANGED):
            return []
        with asking(), self._expiring():
            if step.kind == ADDED:
                return self._added(step.after)
            if step.kind in {ALL, GONE}:
                return self._planned(step.after)
            one, other = (step.before, step.after) if left else (step.after, step.before)
            known = {_named(task) for task in self._planned(other)}
            return [task for task in self._planned(one) if _named(task) not in known]

    def _planned(self, snapshot: int) -> list[FileScanTask]:
        if self._table().snapshot_by_id(snapshot) is None:
            raise self._expired()
        try:
            planned = list(self._table().scan(snapshot_id=snapshot).plan_files())
        except ValueError as error:  # PyIceberg's error for equality deletes
            raise AdapterRefused(
                f"{self._name} cannot be read: {error}; have its delete files written away "
                "(rewrite_data_files)"
            ) from error
        return sorted(planned, key=lambda task: task.file.file_path)

    def _added(self, number: int) -> list[FileScanTask]:
        table, added = self._table(), list[FileScanTask]()
        snapshot = table.snapshot_by_id(number)
        if snapshot is None:
            raise self._expired()
        for manifest in snapshot.manifests(table.io):
            is_of = manifest.added_snapshot_id == number
            if not is_of or manifest.content != ManifestContent.DATA:
                continue
            added += [
                FileScanTask(entry.data_file)
                for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True)
                if entry.status == ManifestEntryStatus.ADDED
            ]
        return sorted(added, key=lambda task: task.file.file_path)

    def _table(self, *, anew: bool = False) -> Table:
        if anew or self._loaded is None:
            with asking():
                self._loaded = self._place.catalogue.load_table(self._name)
        return self._loaded

    @contextmanager
    def _expiring(self) -> Iterator[None]:
        """Report a missing file as a snapshot that has expired in the meantime."""
        try:
            yield
        except FileNotFoundError as error:
            raise self._expired() from error

    def _expired(self) -> CursorExpired:
        return CursorExpired(f"{self._name}: a snapshot expired while it was read")


def _kind(snapshot: Snapshot) -> str:
    operation = snapshot.summary.operation if snapshot.summary else Operation.OVERWRITE
    return {Operation.APPEND: ADDED, Operation.REPLACE: SAME}.get(operation, CHANGED)


def _named(task: FileScanTask) -> tuple[str, frozenset[str]]:
    return task.file.file_path, frozenset(each.file_path for each in task.delete_files)


def _type_of(kind: Any) -> str:
    if isinstance(kind, DecimalType):
        return f"decimal({kind.precision},{kind.scale})"
    return _TYPES.get(str(kind), "bytes" if str(kind).startswith("fixed") else "json")


# --- at a URL -------------------------------------------------------------------------------------


_FORM: Final = (
    "iceberg://glue/prefix?warehouse=s3://bucket/folder&region=eu-central-1, "
    "iceberg://rest/prefix?uri=https://…&warehouse=name or "
    "iceberg://s3tables/prefix?warehouse=arn:…"
)
_PREFIX: Final = re.compile(r"[a-z][a-z0-9_]{0,62}")
_WAREHOUSE: Final = re.compile(r"s3://[a-z0-9][a-z0-9.-]+(/[A-Za-z0-9_.=-]+)*")
_OPTIONS: Final = frozenset({"uri", "warehouse", "signing", "region", "endpoint"})


def lake_place(url: str, secret: Mapping[str, Any]) -> LakePlace:
    """Return the catalogue at a URL, and where in it.

    The URL's path is what the names of the catalogue's databases begin with: that of a stack's lake
    to read it, another one for tables of one's own.

    Args:
        secret: what a REST catalogue asks for, in PyIceberg's names.

    Raises:
        ValidationFailed: the URL names none; all that is wrong with it is said at once.
    """
    try:
        parts = urlsplit(url)
        options = parse_qs(parts.query, strict_parsing=bool(parts.query))
    except ValueError as exc:
        raise _no_catalogue() from exc
    prefix, said = parts.path.strip("/"), {name: one[0] for name, one in options.items()}
    endpoint, warehouse = said.get("endpoint", ""), said.get("warehouse", "")
    is_glue = parts.netloc == "glue"
    if said.keys() - _OPTIONS or not _PREFIX.fullmatch(prefix):
        raise _no_catalogue()
    if (endpoint and not ENDPOINT.fullmatch(endpoint)) or (
        is_glue and not _WAREHOUSE.fullmatch(warehouse)
    ):
        raise _no_catalogue()
    described = LakeCatalogue(
        parts.netloc, said.get("uri", ""), warehouse, signing=said.get("signing", "")
    )
    LakeCatalogue.from_json(described.as_json())  # every fault of it is said
    texts = {name: str(one) for name, one in secret.items()}
    settings = described.python_settings(said.get("region"), endpoint or None, texts)

    def open_catalogue() -> Catalog:
        from pyiceberg.catalog import load_catalog  # noqa: PLC0415 - a cold start

        return load_catalog("lake", **settings | {"py-io-impl": FILE_IO})

    return LakePlace(open_catalogue, prefix, warehouse if is_glue else "")


def _no_catalogue() -> ValidationFailed:
    return ValidationFailed(f"the URL of Iceberg tables is {_FORM}", field="url")


def _opened(place: DatabasePlace) -> IcebergDatabase:
    lake = lake_place(place.url, place.credentials or {})
    return IcebergDatabase(lake, place.keeper, history_ms=place.history_ms)


ICEBERG: Final = DatabaseType("Iceberg tables", _opened)
