"""Edits as they are written, inside a transaction of the file.

An edit's row, its merged state and the outbox delta are committed together or not at all. An app
waits for that: it costs one commit to disk, and around it four statements, each prepared once; or
three where a row is new, whose state may come later (`lakesync.client.storage.unfolded`).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Final, TypeAlias

from lakesync.client.storage.catalogue import checked_text
from lakesync.client.storage.edit_template import EditTemplate
from lakesync.client.storage.rows import INSERT_EDITED, SELECT_ROW, UPSERT_ROW
from lakesync.client.upload.outbox import ADD
from lakesync.core.delta import Op, check_columns, check_identifier
from lakesync.core.forgetting import is_tombstone
from lakesync.core.merge import apply, view
from lakesync.errors import ValidationFailed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lakesync.client.storage.app_table import AppTable, Cell
    from lakesync.client.storage.file import ClientFile
    from lakesync.core.clock import Stamp
    from lakesync.core.delta import Delta
    from lakesync.core.values import CanonicalJson

Columns: TypeAlias = "tuple[tuple[str, ...], list[object]]"
"""Columns of an edit: names in order, and values as the app has them."""
Encoded: TypeAlias = "tuple[AppTable, EditTemplate, Sequence[object], list[CanonicalJson], Delta]"
"""An edit that was not refused: with its values as the app has them, and in canonical form."""

_TEMPLATES_MAX: Final = 64
"""Sets of columns of one table for which it is remembered how their edits are encoded."""
_ORDERS_REMEMBERED: Final = 512
_NO_COLUMNS: Final = "columns must map names to values"


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
        given = checked_columns(op, table, row_id, columns)
        hlc = self._file.clock.now()
        if self._is_group:
            self._group = self._group or hlc
        return write(self._file, op, table, row_id, given, hlc, self._group)


def write_alone(file: ClientFile, edit: Encoded) -> Delta:
    """Write the one edit of a transaction that is made for it; see `Database.write`."""
    app, template, given, values, delta = edit
    run, row_id, hlc = file.connection.execute, delta.row_id, delta.hlc
    if (
        delta.op is not Op.INSERT
        or not values
        or not file.unfolded.may_take(hlc)
        or not run(app.insert_new, template.cells(row_id, given, values)).rowcount
    ):
        file.unfolded.fold()
        return _written(file, edit)
    _note(file, app)
    run(ADD, (hlc, None, app.id, row_id, template.run(delta)))
    file.unfolded.take(app.id, row_id, template.state(hlc, values))
    return delta


def write(
    file: ClientFile,
    op: Op,
    table: str,
    row_id: str,
    columns: Columns,
    hlc: Stamp,
    group: Stamp | None = None,
) -> Delta:
    """Write one edit inside a transaction of the file, in which every row has its state."""
    return _written(file, encoded(file, op, table, row_id, columns, hlc), group)


def encoded(
    file: ClientFile, op: Op, table: str, row_id: str, columns: Columns, hlc: Stamp | None = None
) -> Encoded:
    """Check an edit and encode it; writes nothing but a table or columns that are not there yet."""
    names, given = columns
    app, template = _template(file, op, table, names)
    values = template.values(given)
    delta = template.delta(row_id, hlc or file.clock.now(), values)
    return app, template, given, values, delta


def _written(file: ClientFile, edit: Encoded, group: Stamp | None = None) -> Delta:
    app, template, given, values, delta = edit
    row_id, hlc = delta.row_id, delta.hlc
    run = file.connection.execute
    cells: list[Cell] | None
    if (
        delta.op is Op.INSERT
        and values  # mostly of a row that is not there
        and run(INSERT_EDITED, (app.id, row_id, template.state(hlc, values))).rowcount
    ):
        cells = template.cells(row_id, given, values)
    else:
        seen = _merge(file, app, delta)
        cells = None if seen is None else app.cells(row_id, seen)
    _note(file, app)
    if cells is None:
        run(app.delete, (row_id,))
    else:
        run(app.upsert, cells)
    run(ADD, (hlc, group, app.id, row_id, template.run(delta)))
    file.unfolded.count()
    return delta


def _note(file: ClientFile, app: AppTable) -> None:
    file.catalogue.note_change(app)
    if app.kinds:
        file.catalogue.keep_kinds(app)


def _template(
    file: ClientFile, op: Op, table: str, names: tuple[str, ...]
) -> tuple[AppTable, EditTemplate]:
    """Give the table of an edit, and how edits of such columns of it are encoded."""
    app = file.catalogue.spelled(table)
    template: EditTemplate | None = app.templates.get((op, names)) if app else None
    if app is None or template is None:
        check_identifier(table, "table")
        check_columns(op, names)
        app = file.catalogue.table(table, names)
        template = EditTemplate(op, app, names, file.client_id, file.rows.states)
        if len(app.templates) >= _TEMPLATES_MAX:
            app.templates.clear()
        app.templates[op, names] = template
    return app, template


def _merge(file: ClientFile, app: AppTable, delta: Delta) -> Mapping[str, CanonicalJson] | None:
    """Merge an edit into its row's state; gives the row as it is seen then."""
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


def checked_columns(op: Op, table: object, row_id: object, columns: object) -> Columns:
    """Give the columns of an edit; what typing cannot promise of them is checked here."""
    checked_text(table, "table")
    checked_text(row_id, "rowId")
    if not isinstance(columns, dict | Mapping):  # a dictionary is known sooner than a mapping
        raise ValidationFailed(_NO_COLUMNS, field="columns")
    names = _sorted_names(tuple(columns))
    if op is Op.UPDATE and not names:
        raise ValidationFailed("an update names at least one column", field="columns")
    return names, [columns[name] for name in names]


@lru_cache(_ORDERS_REMEMBERED)
def _sorted_names(names: tuple[str, ...]) -> tuple[str, ...]:
    """Give columns in the order of a row state: so the same delta can be made of one again."""
    if not all(isinstance(name, str) for name in names):
        raise ValidationFailed(_NO_COLUMNS, field="columns")
    return tuple(sorted(names))
