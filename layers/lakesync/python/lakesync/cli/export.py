"""All of a gateway as files: rows, schemas and sync rules, as they were at one stamp.

It is read as a client reads it, page by page, into a client's file; but out of the stores
themselves and without sync rules, so with the operator's credentials. What a client holds at a
cursor is what was committed up to there, in full. So an export is of one stamp, whatever was
written meanwhile, and one that was interrupted goes on where it was.

The files are what the other commands take: `lakesync schema put`, `rules put`, `push`.
"""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from lakesync.analysis.connection import UsageFault
from lakesync.client import Client
from lakesync.client.storage.private_files import make_folder
from lakesync.client.storage.stored_state import states_in
from lakesync.core.clock import STAMP_MAX
from lakesync.core.delta import Op
from lakesync.core.layout import MAIN_LANE
from lakesync.core.merge import view, written
from lakesync.core.rules import NO_RULES, rules_to_json
from lakesync.core.schema import schema_to_json
from lakesync.errors import Forbidden
from lakesync.ports import NO_HEAD

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from lakesync.core.config import GatewayConfig
    from lakesync.core.merge import RowState
    from lakesync.core.messages import Pull, PullPage, Push, PushReceipt
    from lakesync.gateway.pull import PullService
    from lakesync.ports import Buffer

MANIFEST: Final = "export.json"
"""The file that is written last: if it exists, the export is complete."""
_UNFINISHED: Final = "unfinished.db"
_STATES: Final = """SELECT table_id, row_id, state FROM _lakesync_rows
    WHERE table_id = (SELECT id FROM _lakesync_tables WHERE name = ?) ORDER BY row_id"""
_REPORTED_EVERY: Final = 100_000


@dataclass(frozen=True)
class Exported:
    """The result of an export."""

    stamp: int
    """The export has exactly the commits up to this stamp."""
    tables: dict[str, int]
    """The number of rows by table."""


class WholeGateway:
    """A read-only `lakesync.ports.Transport` to a gateway's stores, without sync rules."""

    def __init__(
        self, gateway: str, pulls: PullService, on_progress: Callable[[int], None]
    ) -> None:
        self._gateway = gateway
        self._pulls = pulls
        self._on_progress = on_progress
        self._deltas = 0

    def push(self, push: Push) -> PushReceipt:
        raise Forbidden(f"an export pushes nothing, not even for {push.client_id}")

    def pull(self, pull: Pull) -> PullPage:
        whole = replace(pull, rules=NO_RULES, claims={}, at_least=STAMP_MAX)
        page = self._pulls.pull(self._gateway, whole)
        before, self._deltas = self._deltas, self._deltas + page.count
        if before // _REPORTED_EVERY < self._deltas // _REPORTED_EVERY:
            self._on_progress(self._deltas)
        return page


def export(
    gateway: str,
    buffer: Buffer,
    pulls: PullService,
    folder: Path,
    on_progress: Callable[[int], None],
) -> Exported:
    """Export a gateway to a folder. An interrupted export is continued."""
    if (folder / MANIFEST).exists():
        raise UsageFault(f"{folder} holds an export already: name another folder")
    make_folder(folder)
    unfinished = folder / _UNFINISHED
    transport = WholeGateway(gateway, pulls, on_progress)
    with Client(unfinished, client_id=f"export-{gateway}", transport=transport) as client:
        client.pull().unwrap()
        connection = client._file.database._reader  # noqa: SLF001 - row states are in no public view
        ((stamp,),) = connection.execute("SELECT cursor FROM _lakesync_sync")
        names = [name for (name,) in connection.execute("SELECT name FROM _lakesync_tables")]
        config = buffer.config(gateway)
        config.check_not_deleted()
        tables = {name: _write_rows(connection, name, config, folder) for name in sorted(names)}
    for name, schema in config.schemas.items():
        _write_json(folder / f"{name}.schema.json", schema_to_json(schema))
    _write_json(folder / "rules.json", rules_to_json(config.rules))
    horizon = buffer.heads(gateway).get(MAIN_LANE, NO_HEAD).trimmed
    manifest = {
        "gateway": gateway,
        "stamp": str(stamp),
        "tables": tables,
        # The log is the only copy of these; older deltas are in the lake.
        "eventsSince": {name: str(horizon) for name in tables if config.appends(name)},
    }
    _write_json(folder / MANIFEST, manifest)
    for left in folder.glob(f"{_UNFINISHED}*"):
        left.unlink()
    return Exported(stamp, tables)


def _write_rows(
    connection: sqlite3.Connection, table: str, config: GatewayConfig, folder: Path
) -> int:
    """Write a table's rows, one INSERT per line; return their number."""
    rows, state_of = 0, states_in(connection)
    path = folder / f"{table}.ndjson"
    with path.open("w", encoding="utf-8") as file, closing(connection.cursor()) as cursor:
        for table_id, row_id, state in cursor.execute(_STATES, (table,)):
            row = config.as_read(table, state_of(table_id, state))
            lines = list(_lines(table, row_id, row))
            file.writelines(lines)
            rows += bool(lines)
    return rows


def _lines(table: str, row_id: str, state: RowState) -> Iterator[str]:
    columns = view(state)
    if columns is None:
        return
    for delta in written(Op.INSERT, table, row_id, "export", 1, sorted(columns.items())):
        # Values as they are stored: their JSON is canonical.
        values = ",".join(f"{json.dumps(name)}:{value.decode()}" for name, value in delta.columns)
        head = json.dumps({"op": delta.op.name, "table": table, "rowId": row_id})
        yield f'{head[:-1]}, "columns": {{{values}}}}}\n'


def _write_json(path: Path, body: object) -> None:
    path.write_text(json.dumps(body, indent=2) + "\n", encoding="utf-8")
