"""Resolving a conflict: the app chooses a value, and the conflict is no longer kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, TypeAlias, get_args

from lakesync.client.arguments import checked_whole
from lakesync.client.storage.writing import Writer
from lakesync.core.delta import Op
from lakesync.core.merge import view
from lakesync.errors import Conflict, NotFound, ValidationFailed

if TYPE_CHECKING:
    from lakesync.client.storage.conflicts import LostWrite
    from lakesync.client.storage.file import ClientFile
    from lakesync.core.delta import Delta

Keep: TypeAlias = Literal["mine", "theirs", "new"]
"""Which value a resolved conflict leaves: this client's, the other's, or one that is given."""

_ID_MAX: Final = (1 << 63) - 1


def resolve(file: ClientFile, conflict_id: int, keep: Keep, value: object) -> Delta | None:
    """Resolve a conflict in one transaction; returns the edit that this took, if any.

    See `Client.resolve`.
    """
    checked_whole(conflict_id, "conflict_id", 0, _ID_MAX)
    if keep not in get_args(Keep):
        names = " or ".join(get_args(Keep))
        raise ValidationFailed(f"keep is {names}, not {keep!r:.80}", field="keep")
    with file.database.transaction():
        conflict = file.conflicts.one(conflict_id)
        if conflict is None:
            raise NotFound("no conflict has this id; list them again", field="conflict_id")
        edit = _resolved(file, conflict, keep, value)
        file.conflicts.remove(conflict_id)
    return edit


def _resolved(file: ClientFile, conflict: LostWrite, keep: Keep, value: object) -> Delta | None:
    own_stands = _own_stands(file, conflict)
    if keep == "new":
        return _edit(file, conflict, value)
    if keep == "mine":
        if own_stands:
            return None
        return _edit(file, conflict, conflict.own, deletes=conflict.won and conflict.deleted)
    if not own_stands:
        return None
    if conflict.hidden:
        raise Conflict("rules have hidden the other value: keep yours, or give a new one")
    return _edit(file, conflict, conflict.other, deletes=conflict.deleted and not conflict.won)


def _own_stands(file: ClientFile, conflict: LostWrite) -> bool:
    """Return whether the row still shows what this client wrote, by that write."""
    table = file.catalogue.known(conflict.table)
    state = file.rows.one((table.id, conflict.row_id)).state
    if conflict.won and conflict.deleted:
        return state.deleted == conflict.own_stamp and view(table.as_read(state)) is None
    register = table.as_read(state).columns.get(conflict.column)
    return register is not None and register[:2] == (conflict.own_stamp, file.client_id)


def _edit(file: ClientFile, conflict: LostWrite, value: object, *, deletes: bool = False) -> Delta:
    writer = Writer(file, is_group=False)
    if deletes:
        return writer.write(Op.DELETE, conflict.table, conflict.row_id, {})
    table = file.catalogue.known(conflict.table)
    state = file.rows.one((table.id, conflict.row_id)).state
    # An update does not bring a deleted row back everywhere.
    op = Op.UPDATE if view(table.as_read(state)) is not None else Op.INSERT
    return writer.write(op, conflict.table, conflict.row_id, {conflict.column: value})
