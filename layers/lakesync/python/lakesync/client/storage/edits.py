"""Edits as they are written to the file, also those that an app's SQL statements become.

An edit's row, its merged state and the outbox delta are committed together or not at all. An app
waits for this: it costs one commit to disk, and around it four statements, each prepared once; or
three if a row is new, whose state may be written later (`lakesync.client.storage.stored_rows`).

Most bytes of an edit are those of the one before: the names, the client. So the common part of
edits of the same columns of a table is encoded once (`EditTemplate`), and each edit only fills in
its row, its stamp and its values. The results are those that `lakesync.core.delta`,
`encode_record`, `States` and `AppTable.cells` give for the same edit. While an app waits for the
disk, a processor evicts the code from its caches. So the cost of an edit depends on how much code
and how many objects it touches; hence `EditTemplate.encode` is one function.

Rules of statements, of synced tables
    1. A statement runs once to be noted, and is rolled back; then its notes are written like any
       edits. So the app's table contains only what became deltas.
    2. Columns that the statement leaves unchanged are not written: others may have changed them
       meanwhile.
    3. A statement that cannot become deltas is refused with the reason before anything is written.
    4. What its cells stand for is determined before any of them is written, by what their columns
       hold until then.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from functools import partial
from json.encoder import encode_basestring
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeAlias

from lakesync.client.storage.app_table import ROW_ID, quote
from lakesync.client.storage.cell_values import (
    BINARY,
    FORMS,
    cell,
    encoder,
    is_mark,
    kind_of,
    plain_classes,
    undeclared,
)
from lakesync.client.storage.device_tables import (
    NO_RETURNING,
    check_local,
    refused,
    run_local,
    targets_of,
)
from lakesync.client.storage.misuse import checked_text
from lakesync.client.storage.outbox import ADD
from lakesync.client.storage.queries import stored_kinds
from lakesync.client.storage.sqlite_file import query_result
from lakesync.client.storage.statement_capture import Origins, as_cells, holds_bytes, same
from lakesync.client.storage.stored_rows import INSERT_EDITED, SELECT_ROW, UPSERT_ROW
from lakesync.core.clock import STAMP_MAX
from lakesync.core.delta import (
    DELTA_BYTES_MAX,
    ROW_ID_BYTES_MAX,
    Delta,
    Op,
    canonical,
    check_columns,
    check_row_id,
    check_size,
    check_stamp,
    filled_id,
    id_template,
    parse,
)
from lakesync.core.merge import apply, is_tombstone, view
from lakesync.core.names import check_table_name
from lakesync.errors import InvalidInput, ValidationFailed
from lakesync.wire.records import RecordTemplate

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from lakesync.client.storage.app_table import AppTable
    from lakesync.client.storage.cell_values import Cell
    from lakesync.client.storage.device_tables import Targets
    from lakesync.client.storage.file import ClientFile
    from lakesync.client.storage.statement_capture import Note
    from lakesync.client.storage.stored_state import States
    from lakesync.core.clock import Stamp
    from lakesync.core.delta import CanonicalJson

# --- what edits of the same columns have in common ------------------------------------------------


Encoded: TypeAlias = "tuple[Delta, bytes, list[CanonicalJson], list[Cell]]"
"""An edit that was not refused: its delta, the run of that, its values, and the cells of a row that
has only these: `EditTemplate.row` puts them in the table's order.
"""
Column: TypeAlias = (
    "tuple[str, Collection[type], Callable[[object], CanonicalJson], Callable[[bytes], Cell]]"
)
_BYTE_MAX: Final = 255
_delta_of: Final = tuple.__new__  # as `Delta` does, without the function that it wraps it in
_TRUE: Final[tuple[CanonicalJson, Cell]] = b"true", 1
_FALSE: Final[tuple[CanonicalJson, Cell]] = b"false", 0
_EXACT_INT_MAX: Final = (1 << 53) - 1


class EditTemplate:
    """Encodes one client's edits of some columns of a table, as that is now."""

    __slots__ = (
        *("_arrange", "_client_id", "_columns", "_forms", "_id", "_names", "_op"),
        *("_opening", "_run", "_shown", "_states", "_table"),
    )

    def __init__(
        self, op: Op, table: AppTable, names: tuple[str, ...], client_id: str, states: States
    ) -> None:
        self._op, self._table, self._names = op, table, names
        self._client_id, self._states = client_id, states
        self._columns = [_column(table, name) for name in names]
        self._id = id_template(client_id, names, table.name)
        self._run = RecordTemplate(op, table.name, names, client_id).encode
        ordered, members = table.places.of(names)
        self._arrange = None if ordered == names else itemgetter(*map(names.index, ordered))
        self._opening: tuple[bytes, bytes] | None = None
        if names and len(members) <= _BYTE_MAX:
            self._opening = states.opening(client_id, members)
        places = {name: place for place, name in enumerate(names)}
        self._forms = [~table.forms.get(name, 0) for name in names]
        shown = list(map(places.get, table.shown))
        self._shown = None if shown == list(range(len(names))) else shown

    def encode(self, row_id: str, hlc: Stamp, columns: Mapping[str, Any]) -> Encoded:
        """Encode an edit of these columns by their declared types; raises what the app is told."""
        if not (row_id.isascii() and 0 < len(row_id) <= ROW_ID_BYTES_MAX):
            check_row_id(row_id)
        if not 0 < hlc <= STAMP_MAX:
            check_stamp(hlc)
        values: list[CanonicalJson] = []
        cells: list[Cell] = [row_id]
        try:
            for name, plain, encode, cell_of in self._columns:
                value = columns[name]
                kind = value.__class__
                if kind not in plain:
                    raw = encode(value)
                    shown = cell_of(raw)
                elif kind is str:
                    is_sure = value.isascii()  # else it may hold half of a surrogate pair
                    raw = encode_basestring(value).encode() if is_sure else canonical(value)
                    shown = value
                elif kind is bool:
                    raw, shown = _TRUE if value else _FALSE
                elif kind is int and -_EXACT_INT_MAX <= value <= _EXACT_INT_MAX:
                    raw = b"%d" % value
                    shown = value
                else:
                    raw = canonical(value)
                    shown = cell_of(raw)
                values.append(raw)
                cells.append(shown)
        except InvalidInput as error:
            self._refuse(len(values), columns, error)
        delta_id = filled_id(self._id, values, hlc, row_id)
        pairs = tuple(zip(self._names, values, strict=True))
        delta = _delta_of(
            Delta, (self._op, self._table.name, row_id, self._client_id, hlc, pairs, delta_id)
        )
        run = self._run(row_id, hlc, values, delta_id)
        if len(run) > DELTA_BYTES_MAX:
            check_size(sum(map(len, values)))
        return delta, run, values, cells

    def row(self, values: Sequence[CanonicalJson], cells: list[Cell]) -> list[Cell]:
        """Return the parameters of the table's ``upsert`` for a row of one insert, as encoded."""
        for value, new in zip(values, self._forms, strict=True):
            if FORMS.get(value[:2], 0) & new:
                return self._table.cells(cells[0], dict(zip(self._names, values, strict=True)))  # type: ignore[arg-type]
        if self._shown is None:
            return cells
        return [cells[0], *[None if at is None else cells[at + 1] for at in self._shown]]

    def state(self, hlc: Stamp, values: Sequence[CanonicalJson]) -> bytes:
        """Return the stored state of a row of which only an insert of these columns is known."""
        arranged = values if self._arrange is None else self._arrange(values)
        if self._opening is None or max(sizes := list(map(len, arranged))) > _BYTE_MAX:
            row = (hlc,), (self._client_id,), [(value,) for value in values]
            return self._states.encode_inserts(self._table.places, self._names, *row)[0]
        head, behind = self._opening
        return b"".join((head, hlc.to_bytes(8, "little"), behind, bytes(sizes), *arranged))

    def _refuse(self, at: int, columns: Mapping[str, Any], error: InvalidInput) -> NoReturn:
        name = self._names[at]
        value = columns[name]
        needed = None if name in self._table.declared else undeclared(name, value)
        raised = needed or error
        raised.field = f"columns.{name[:64]}"
        raise raised from error.__cause__


def _column(table: AppTable, name: str) -> Column:
    """Get a column's name, the classes whose values are plain there, and an encoder for others."""
    declared = table.declared.get(name, "")
    encode = encoder(table.name, name, declared) if declared else canonical
    write = table.writer(name)
    # Values whose cells are not plain are encoded by the general way.
    return name, () if write else plain_classes(declared), encode, write or cell


# --- writing --------------------------------------------------------------------------------------


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
    """Writes edits inside a transaction of the file: as one local transaction, or each alone."""

    def __init__(self, file: ClientFile, *, is_group: bool) -> None:
        self._file = file
        self._is_group = is_group
        # The stamp of its first edit, by which the outbox identifies the transaction's edits.
        self._group: Stamp | None = None

    def write(self, op: Op, table: str, row_id: str, columns: Mapping[str, object]) -> Delta:
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
    """Return the names of columns as given, and in the order of a delta and of a row state."""
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


# --- statements as edits --------------------------------------------------------------------------


_DEFINES: Final = re.compile(r"\s*(?:CREATE|DROP)\b", re.IGNORECASE)
_MISSING: Final = object()
_TARGETS_REMEMBERED: Final = 512
_NOTHING: Final = frozenset[Any]()


def execute(file: ClientFile, writer: Writer, sql: str, parameters: object) -> int:
    """Run one statement that writes; returns how many rows. Of a synced table they are edits."""
    given = as_cells(parameters, takes_lists=True)
    prepared = file.capture.targets
    name, read = prepared.get(str(sql), ("", _NOTHING))
    table = file.catalogue.by_sql_name(name)
    if table is None:
        targets = query_result(
            lambda: targets_of(file.connection, sql, given), "statement"
        ).unwrap()
        name = "".join(targets.written)  # SQLite writes to one
        table = None if targets.defined else file.catalogue.by_sql_name(name)
        if table is None:
            return _execute_locally(file, targets, sql, given)
        if len(prepared) >= _TARGETS_REMEMBERED:
            prepared.clear()
        read = frozenset(targets.read)
        prepared[str(sql)] = name, read
    table.check()
    compared = given
    if read and holds_bytes(given):
        compared = stored_kinds(file.connection).compared(read, given)
    again = partial(_noted, file, table, sql)
    notes = query_result(lambda: again(compared), "statement").unwrap()
    origins = Origins(parameters, compared, again)
    kinds = _kinds(file, table)
    for note, values in zip(notes, _values(table, kinds, notes, origins), strict=True):
        _write(file, writer, table, kinds, note, values)
    return len(notes)


def _execute_locally(file: ClientFile, targets: Targets, sql: str, given: Any) -> int:
    if not targets.written and not targets.defined:
        if _DEFINES.match(sql):
            return 0  # IF EXISTS, IF NOT EXISTS: SQLite finds nothing to do
        raise refused("the statement writes to no table: execute writes, query reads")
    check_local(file.catalogue, targets)
    run = partial(run_local, file.connection, file.catalogue, targets, sql, given)
    return query_result(run, "statement").unwrap()


def _noted(file: ClientFile, table: AppTable, sql: str, parameters: Any) -> list[Note]:
    """Run a statement, note what it writes, and undo it."""
    run = file.connection.execute
    replaces = "replace" in sql.lower()
    with file.capture.noting(table) as notes:
        if replaces:  # what it replaces is deleted, which triggers hear of only so
            run("PRAGMA recursive_triggers = ON")
        run("SAVEPOINT _lakesync_statement")
        try:
            cursor = run(sql, parameters)
            gives_rows = cursor.description is not None
            cursor.close()
        finally:
            if file.connection.in_transaction:
                run("ROLLBACK TO _lakesync_statement")
                run("RELEASE _lakesync_statement")
            if replaces:
                run("PRAGMA recursive_triggers = OFF")
    if gives_rows:
        raise refused(NO_RETURNING)
    return notes


def _values(
    table: AppTable, kinds: Mapping[str, str], notes: Sequence[Note], origins: Origins
) -> list[dict[str, object]]:
    """Return the values that the cells of notes stand for."""
    names = [(place, name, kinds.get(name, "")) for place, name in enumerate(table.shown)]
    read: list[dict[str, object]] = []
    doubtful: list[tuple[int, int, str]] = []
    for row, note in enumerate(notes):
        values: dict[str, object] = {}
        for place, name, kind in names if note.cells else ():
            content = note.cells[place]
            values[name] = value = _value(table, name, kind, content)
            if origins.is_doubtful(content, value, kind):
                doubtful.append((row, place, name))
        read.append(values)
    origin_of = origins.of(notes) if doubtful else {}
    for row, place, name in doubtful:
        read[row][name] = origin_of.get((row, place), read[row][name])
    for values in read:
        for name, value in values.items():
            if isinstance(value, BINARY):
                raise refused(
                    f"the column {name} is given bytes, which need the type bytes: declare it so, "
                    "or write text"
                )
    return read


def _value(table: AppTable, name: str, kind: str, content: object) -> object:
    """Return the value that a cell stands for; bytes if it can be nothing else."""
    if isinstance(content, bytes):
        if kind == "bytes":
            return base64.b64encode(content).decode()
        return parse(content) if is_mark(content, kind, table.forms.get(name, 0)) else content
    return table.written(name, content, kind)


def _write(
    file: ClientFile,
    writer: Writer,
    table: AppTable,
    kinds: Mapping[str, str],
    note: Note,
    values: Mapping[str, object],
) -> None:
    """Write a note as an edit of the columns that it changes."""
    if note.row_id != note.old_id:
        raise refused("a row keeps its _row_id: delete it, and insert another one")
    if not isinstance(note.row_id, str):
        raise refused(f"a _row_id is text, not {type(note.row_id).__name__}")
    row_id = note.row_id
    if note.op is Op.DELETE:
        writer.write(Op.DELETE, table.name, row_id, {})
        return
    before = _before(file, table, kinds, row_id)
    columns = {
        name: value
        for name, value in values.items()
        if (value is not None or name in before) and not same(value, before.get(name, _MISSING))
    }
    if columns or note.op is Op.INSERT:
        writer.write(note.op, table.name, row_id, columns)


def _before(
    file: ClientFile, table: AppTable, kinds: Mapping[str, str], row_id: str
) -> dict[str, object]:
    """Return the values of a row before a note of it is written; none if there is no row."""
    names = ", ".join(quote(c) for c in table.columns.values() if c) or "NULL"
    row = file.connection.execute(
        f"SELECT {names} FROM {quote(table.sql_name)} WHERE {quote(ROW_ID)} = ?",  # noqa: S608 - quoted
        (row_id,),
    ).fetchone()
    return {
        name: _value(table, name, kinds.get(name, ""), content)
        for name, content in zip(table.shown, row or (), strict=False)
    }


def _kinds(file: ClientFile, table: AppTable) -> dict[str, str]:
    """Return the kinds of columns: the schema's, or what the app declared."""
    schema = file.schema(table.name)
    registered = {column.name: column.type for column in schema.columns} if schema else {}
    return {name: kind_of(kind) for name, kind in (table.declared | registered).items()}
