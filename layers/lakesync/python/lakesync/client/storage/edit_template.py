"""The common part of edits of the same columns of a table, encoded once.

An app waits for each edit, and most bytes of an edit are those of the one before: the names, the
client. So each edit only fills in its row, its stamp and its values. The results are those that
`lakesync.core.delta`, `encode_record`, `States` and `AppTable.cells` give for the same edit.

While an app waits for the disk, a processor evicts the code from its caches. So the cost of an edit
depends on how much code and how many objects it touches; hence `EditTemplate.encode` is one
function.
"""

from __future__ import annotations

from json.encoder import encode_basestring
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeAlias

from lakesync.client.storage.cell_values import FORMS, cell, encoder, plain_classes, undeclared
from lakesync.core.clock import STAMP_MAX
from lakesync.core.delta import (
    DELTA_BYTES_MAX,
    ROW_ID_BYTES_MAX,
    Delta,
    check_row_id,
    check_size,
    check_stamp,
    filled_id,
    id_template,
)
from lakesync.core.values import canonical
from lakesync.errors import InvalidInput
from lakesync.wire.records import RecordTemplate

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from lakesync.client.storage.app_table import AppTable
    from lakesync.client.storage.cell_values import Cell
    from lakesync.client.storage.stored_state import States
    from lakesync.core.clock import Stamp
    from lakesync.core.delta import Op
    from lakesync.core.values import CanonicalJson

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
    """Encodes one client's edits of some columns of a table, as that is now.

    Args:
        op: the operation of the edits.
        table: the table, which has the columns.
        names: the columns, in the order of a delta, checked.
        client_id: the client.
        states: knows clients by number.
    """

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
        """Encode an edit of these columns, by the types that the app declared.

        Raises:
            ValidationFailed: a value, the row id or the stamp is invalid.
            SchemaMismatch: a value is not of its column's type.
            DeltaTooLarge: the values together are too large.
        """
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
        """Raise the error for a value, by its place, that cannot be written."""
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
