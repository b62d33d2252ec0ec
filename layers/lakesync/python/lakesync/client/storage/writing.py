"""Edits as they are written, inside a transaction of the file.

An edit's row, its merged state and the outbox delta are committed together or not at all. An app
waits for that: it costs one commit to disk, and around it four statements, each prepared once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from lakesync.client.storage.catalogue import checked_text
from lakesync.client.storage.rows import INSERT_EDITED, SELECT_ROW, UPSERT_ROW
from lakesync.client.upload.outbox import ADD
from lakesync.core.delta import Op, checked_delta
from lakesync.core.forgetting import is_tombstone
from lakesync.core.merge import apply, view
from lakesync.core.values import canonical
from lakesync.errors import ValidationFailed
from lakesync.wire.records import encode_record

if TYPE_CHECKING:
    from lakesync.client.storage.app_table import AppTable
    from lakesync.client.storage.file import ClientFile
    from lakesync.core.clock import Stamp
    from lakesync.core.delta import Columns, Delta
    from lakesync.core.values import CanonicalJson


class Writer:
    """Writes edits inside a transaction of the file.

    Args:
        file: the file.
        is_group: they are one local transaction; else each stands alone at the gateway.
    """

    def __init__(self, file: ClientFile, *, is_group: bool) -> None:
        self._file = file
        self._is_group = is_group
        # The stamp of its first edit, by which the outbox tells what belongs together.
        self._group: Stamp | None = None

    def write(self, op: Op, table: str, row_id: str, columns: Mapping[str, object]) -> Delta:
        """Write one edit."""
        encoded = encoded_columns(op, table, row_id, columns)
        hlc = self._file.clock.now()
        if self._is_group:
            self._group = self._group or hlc
        return write(self._file, op, table, row_id, encoded, hlc, self._group)


def write(
    file: ClientFile,
    op: Op,
    table: str,
    row_id: str,
    columns: Columns,
    hlc: Stamp,
    group: Stamp | None = None,
) -> Delta:
    """Write one edit inside a transaction of the file."""
    delta = checked_delta(op, table, row_id, file.client_id, hlc, columns)
    app = file.catalogue.table(table, [name for name, _ in columns])
    run = file.connection.execute
    values = _merge(file, app, delta)
    cells = None if values is None else app.cells(row_id, values)
    file.catalogue.note_change(app)
    if app.kinds:
        file.catalogue.keep_kinds(app)
    if cells is None:
        run(app.delete, (row_id,))
    else:
        run(app.upsert, cells)
    run(ADD, (hlc, group, app.id, row_id, encode_record(delta)))
    return delta


def _merge(file: ClientFile, app: AppTable, delta: Delta) -> Mapping[str, CanonicalJson] | None:
    """Merge an edit into its row's state; gives the row as it is seen then."""
    run, states = file.connection.execute, file.rows.states
    key = app.id, delta.row_id
    if delta.op is Op.INSERT and delta.columns:  # mostly of a row that is not there
        names, values = zip(*delta.columns, strict=True)
        columns = [(value,) for value in values]
        (new,) = states.encode_inserts(app.places, names, (delta.hlc,), (delta.client_id,), columns)
        if run(INSERT_EDITED, (*key, new)).rowcount:
            return dict(delta.columns)
    row = run(SELECT_ROW, key).fetchone()
    state, base, waiting = row or (b"", None, 0)
    after = apply(states.decode(app.places, state), delta)
    if base is None:  # the first edit that waits: what is stored so far does not
        base = state
    mark = 0 if is_tombstone(after) else None
    run(UPSERT_ROW, (*key, states.encode(app.places, after), base, waiting + 1, mark))
    return view(app.as_read(after))


def encoded_columns(op: Op, table: object, row_id: object, columns: object) -> Columns:
    """Give the columns' canonical bytes; what typing cannot promise is checked here."""
    checked_text(table, "table")
    checked_text(row_id, "rowId")
    if not isinstance(columns, Mapping) or not all(isinstance(name, str) for name in columns):
        raise ValidationFailed("columns must map names to values", field="columns")
    if op is Op.UPDATE and not columns:
        raise ValidationFailed("an update names at least one column", field="columns")
    encoded = []
    # In the order of a row state, so that the same delta can be made of one again.
    for name, value in sorted(columns.items()):
        try:
            encoded.append((name, canonical(value)))
        except ValidationFailed as error:
            error.field = f"columns.{name[:64]}"
            raise
    return tuple(encoded)
