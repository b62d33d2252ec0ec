"""Edits as they are written, inside a transaction of the file.

An edit's row, its merged state and the outbox delta are committed together or not at all. An app
waits for this: it costs one commit to disk, and around it four statements, each prepared once; or
three if a row is new, whose state may be written later (`lakesync.client.storage.unfolded`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, TypeAlias

from lakesync.client.arguments import checked_text
from lakesync.client.storage.app_table import ROW_ID
from lakesync.client.storage.edit_template import EditTemplate
from lakesync.client.storage.rows import INSERT_EDITED, SELECT_ROW, UPSERT_ROW
from lakesync.client.upload.outbox import ADD
from lakesync.core.delta import Op, check_columns
from lakesync.core.forgetting import is_tombstone
from lakesync.core.merge import apply, view
from lakesync.core.names import check_table_name
from lakesync.errors import ValidationFailed

if TYPE_CHECKING:
    from lakesync.client.storage.app_table import AppTable
    from lakesync.client.storage.cells import Cell
    from lakesync.client.storage.file import ClientFile
    from lakesync.core.clock import Stamp
    from lakesync.core.delta import Delta
    from lakesync.core.values import CanonicalJson

Edit: TypeAlias = "tuple[AppTable, EditTemplate, Delta, bytes, list[CanonicalJson], list[Cell]]"
"""An edit that was not refused: what it is of, and what `EditTemplate.encode` makes of it."""

_TEMPLATES_MAX: Final = 64
"""Sets of columns of one table for which it is remembered how their edits are encoded."""
_NO_COLUMNS: Final = "columns must map names to values"
_ID_AMONG_COLUMNS: Final = (
    f"a row's id is given beside its columns: leave {ROW_ID} out of them, else every client would "
    "be sent a column of that name"
)


class Writer:
    """Writes edits inside a transaction of the file.

    Args:
        file: the file.
        is_group: they are one local transaction; else each stands alone at the gateway.
    """

    def __init__(self, file: ClientFile, *, is_group: bool) -> None:
        self._file = file
        self._is_group = is_group
        # The stamp of its first edit, by which the outbox identifies the transaction's edits.
        self._group: Stamp | None = None

    def write(self, op: Op, table: str, row_id: str, columns: Mapping[str, object]) -> Delta:
        """Write one edit."""
        hlc = self._file.clock.now()
        edit = encoded(self._file, op, table, row_id, columns, hlc)
        if self._is_group:
            self._group = self._group or hlc
        return _written(self._file, edit, self._group)


def encoded(
    file: ClientFile,
    op: Op,
    table: str,
    row_id: str,
    columns: Mapping[str, object],
    hlc: Stamp | None = None,
) -> Edit:
    """Check an edit and encode it; writes nothing but a table or columns that are not there yet."""
    if row_id.__class__ is not str:
        checked_text(row_id, "rowId")
    app = template = None
    if table.__class__ is str and columns.__class__ is dict:
        app = file.catalogue.spelled(table)
        template = app.templates.get((op, *columns)) if app is not None else None
    if app is None or template is None:
        app, template = _new_template(file, op, table, columns)
    return app, template, *template.encode(row_id, hlc or file.clock.now(), columns)


def write_alone(file: ClientFile, edit: Edit) -> Delta:
    """Write the one edit of a transaction that is made for it; see `Database.write`."""
    app, template, delta, run, values, cells = edit
    unfolded, execute, hlc = file.unfolded, file.database.execute, delta.hlc
    if (
        delta.op is not Op.INSERT
        or not values
        or not unfolded.may_take(hlc)
        or not execute(app.insert_new, template.row(values, cells)).rowcount
    ):
        unfolded.fold()
        return _written(file, edit)
    row_id = delta.row_id
    file.catalogue.note_change(app)
    execute(ADD, (hlc, None, app.id, row_id, run))
    unfolded.take(app.id, row_id, template, hlc, values)
    return delta


def _written(file: ClientFile, edit: Edit, group: Stamp | None = None) -> Delta:
    """Write an edit inside a transaction of the file, in which every row has its state."""
    app, template, delta, run, values, cells = edit
    row_id, hlc = delta.row_id, delta.hlc
    execute = file.connection.execute
    row: list[Cell] | None
    if (
        delta.op is Op.INSERT
        and values  # mostly of a row that is not there
        and execute(INSERT_EDITED, (app.id, row_id, template.state(hlc, values))).rowcount
    ):
        row = template.row(values, cells)
    else:
        seen = _merge(file, app, delta)
        row = None if seen is None else app.cells(row_id, seen)
    file.catalogue.note_change(app)
    if row is None:
        execute(app.delete, (row_id,))
    else:
        execute(app.upsert, row)
    execute(ADD, (hlc, group, app.id, row_id, run))
    file.unfolded.count()
    return delta


def _new_template(
    file: ClientFile, op: Op, table: str, columns: Mapping[str, object]
) -> tuple[AppTable, EditTemplate]:
    """Return the table of an edit, and how edits of such columns of it are encoded."""
    given, names = _checked_names(op, table, columns)
    check_table_name(table, "table")
    check_columns(op, names)
    app = file.catalogue.table(table, names)
    template = app.templates.get((op, *names))
    if template is None:
        template = EditTemplate(op, app, names, file.client_id, file.rows.states)
    if len(app.templates) >= _TEMPLATES_MAX:
        app.templates.clear()
    app.templates[op, *names] = app.templates[op, *given] = template
    return app, template


def _merge(file: ClientFile, app: AppTable, delta: Delta) -> Mapping[str, CanonicalJson] | None:
    """Merge an edit into its row's state; returns the row as it is seen then."""
    run, states = file.connection.execute, file.rows.states
    key = app.id, delta.row_id
    row = run(SELECT_ROW, key).fetchone()
    state, base, waiting = row or (b"", None, 0)
    after = apply(states.decode(app.places, state), delta)
    if base is None:  # the first edit that waits: what is stored so far does not
        base = state
    mark = 0 if is_tombstone(after) else None
    run(UPSERT_ROW, (*key, states.encode(app.places, after), base, waiting + 1, mark))
    return view(app.as_read(after))


def _checked_names(
    op: Op, table: object, columns: object
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of columns, and in the order of a delta; checks what typing cannot.

    That is the order of a row state: so the same delta can be made of one again.
    """
    checked_text(table, "table")
    if not isinstance(columns, Mapping):
        raise ValidationFailed(_NO_COLUMNS, field="columns")
    names = tuple(columns)
    if not all(isinstance(name, str) for name in names):
        raise ValidationFailed(_NO_COLUMNS, field="columns")
    if ROW_ID in names:
        raise ValidationFailed(_ID_AMONG_COLUMNS, field=f"columns.{ROW_ID}")
    if op is Op.UPDATE and not names:
        raise ValidationFailed("an update names at least one column", field="columns")
    return names, tuple(sorted(names))
