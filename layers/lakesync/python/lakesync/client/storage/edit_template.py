"""What edits of the same columns of a table have in common, put together once.

An app waits for each edit, and most of what one writes are the bytes of the one before: the names,
the client. So what is left to do for an edit is to fill in its row, its stamp and its values. What
comes of it is what `lakesync.core.delta`, `States` and `AppTable.cells` make of the same edit.
"""

from __future__ import annotations

from operator import call, itemgetter
from typing import TYPE_CHECKING, Final

from lakesync.client.storage.app_table import cell
from lakesync.client.storage.python_values import encoder, undeclared
from lakesync.core.delta import Delta, check_row_id, check_size, check_stamp
from lakesync.core.identity import filled_id, id_template
from lakesync.core.values import canonical
from lakesync.errors import InvalidInput
from lakesync.wire.records import RecordTemplate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lakesync.client.storage.app_table import AppTable, Cell
    from lakesync.client.storage.stored_state import States
    from lakesync.core.clock import Stamp
    from lakesync.core.delta import Op
    from lakesync.core.values import CanonicalJson

_BYTE_MAX: Final = 255


class EditTemplate:
    """Encodes one client's edits of some columns of a table, as that is now.

    Args:
        op: what the edits do.
        table: the table, which has the columns.
        names: the columns, in the order of a delta, checked.
        client_id: the client.
        states: knows clients by number.
    """

    __slots__ = (
        *("run", "_arrange", "_client_id", "_encoders", "_id", "_names", "_op", "_opening"),
        *("_places", "_shown", "_states", "_table"),
    )

    def __init__(
        self, op: Op, table: AppTable, names: tuple[str, ...], client_id: str, states: States
    ) -> None:
        self._op, self._table, self._names = op, table, names
        self._client_id, self._states = client_id, states
        declared = table.declared
        self._encoders = [
            encoder(table.name, name, declared[name]) if name in declared else canonical
            for name in names
        ]
        self._id = id_template(client_id, names, table.name)
        self.run = RecordTemplate(op, table.name, names, client_id).encode
        """Gives the run of an edit's delta."""
        ordered, members = table.places.of(names)
        self._arrange = None if ordered == names else itemgetter(*map(names.index, ordered))
        self._opening: tuple[bytes, bytes] | None = None
        if names and len(members) <= _BYTE_MAX:
            self._opening = states.opening(client_id, members)
        self._places = {name: place for place, name in enumerate(names)}
        shown = list(map(self._places.get, table.shown))
        self._shown = None if shown == list(range(len(names))) else shown

    def values(self, given: Sequence[object]) -> list[CanonicalJson]:
        """Give the canonical bytes of an edit's values, by the types that the app declared.

        Raises:
            ValidationFailed: one is no value.
            SchemaMismatch: one is not of its column's type.
        """
        values: list[CanonicalJson] = []
        try:
            values.extend(map(call, self._encoders, given))
        except InvalidInput as error:
            name, value = self._names[len(values)], given[len(values)]
            needed = None if name in self._table.declared else undeclared(name, value)
            raised = needed or error
            raised.field = f"columns.{name[:64]}"
            raise raised from error.__cause__
        return values

    def delta(self, row_id: str, hlc: Stamp, values: Sequence[CanonicalJson]) -> Delta:
        """Give the delta of an edit.

        Raises:
            ValidationFailed: the row id or the stamp is none.
            DeltaTooLarge: so are the values together.
        """
        check_row_id(row_id)
        check_stamp(hlc)
        check_size(sum(map(len, values)))
        columns = tuple(zip(self._names, values, strict=True))
        delta_id = filled_id(self._id, values, hlc, row_id)
        return Delta(self._op, self._table.name, row_id, self._client_id, hlc, columns, delta_id)

    def state(self, hlc: Stamp, values: Sequence[CanonicalJson]) -> bytes:
        """Give what is kept of a row of which an insert of these columns is all that is known."""
        arranged = values if self._arrange is None else self._arrange(values)
        if self._opening is None or max(sizes := list(map(len, arranged))) > _BYTE_MAX:
            row = (hlc,), (self._client_id,), [(value,) for value in values]
            return self._states.encode_inserts(self._table.places, self._names, *row)[0]
        head, behind = self._opening
        return b"".join((head, hlc.to_bytes(8, "little"), behind, bytes(sizes), *arranged))

    def cells(
        self, row_id: str, given: Sequence[object], values: Sequence[CanonicalJson]
    ) -> list[Cell]:
        """Give the parameters of the table's ``upsert`` for a row of one insert.

        Args:
            row_id: the row.
            given: its values, as the app has them.
            values: the same in canonical form.
        """
        for name, is_boolean in self._table.booleans.items():
            at = self._places.get(name)
            if at is not None and (given[at].__class__ is bool) is not is_boolean:
                self._table.note_values(dict(zip(self._names, values, strict=True)))
                break
        cells: list[Cell] = [
            value if value.__class__ is str else cell(raw)
            for value, raw in zip(given, values, strict=True)
        ]
        if self._shown is not None:
            cells = [None if at is None else cells[at] for at in self._shown]
        return [row_id, *cells]
