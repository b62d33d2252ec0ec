"""Restores the lost mark of a lake table, computed from the table's own rows.

A mark is lost if the tag ``lakesync`` was dropped and the snapshots that carry the mark expired. It
is in the rows too: each delta of a changes or events table carries its commit, and a batch ends
with a commit that has one; each row of a state table carries the mark that came with its last
change. So the greatest ``_commit`` of a table is its mark. Law L18: ``docs/spec/lake.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lakesync.cli.faults import UsageFault
from lakesync.cli.lake import history
from lakesync.core.names import CHANGES_SUFFIX

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lakesync.cli.lake import Lake

_COMMIT: Final = "_commit"
_MARK: Final = "lakesync.commit"
_TAG: Final = "lakesync"


class Repair(NamedTuple):
    """A table's mark before and after the repair."""

    table: str
    mark: int
    """The mark that the table has, or will get."""
    is_lost: bool


def repairs(lake: Lake, table: str | None) -> Iterator[Repair]:
    """Report for each table whether its mark is lost, and which one it gets.

    Raises:
        UsageFault: a table's rows go further than its history.
    """
    names = lake.names_of(table)
    marks = {name: _mark(lake.table(name)) for name in names}
    for name, mark in marks.items():
        if lake.table(name).current_snapshot() is None:
            continue
        wanted = mark or greatest_commit(lake.table(name))
        changes = name + CHANGES_SUFFIX
        if not mark and changes in names:
            reached = marks[changes] or greatest_commit(lake.table(changes))
            if wanted > reached:
                raise UsageFault(
                    f"{name} has rows of commit {wanted}, and its history ends at {reached}: "
                    f"rows of {changes} are gone, so its mark cannot be known; nothing was changed"
                )
        yield Repair(name, wanted, is_lost=not mark)


def set_mark(table: Any, mark: int) -> None:
    """Commit a snapshot that adds nothing and carries the mark, and tag it. Safe to repeat."""
    table.refresh()
    if _mark(table):
        return
    empty = table.schema().as_arrow().empty_table()
    properties = {_MARK: str(mark), "lakesync.batch": "repair", "lakesync.epoch": "0"}
    table.append(empty, snapshot_properties=properties)
    if _TAG not in table.metadata.refs:
        table.manage_snapshots().create_tag(table.current_snapshot().snapshot_id, _TAG).commit()


def mark_shown(table: Any) -> dict[str, str | None]:
    """Return a table's mark as it is now, for a record; None if it is lost."""
    table.refresh()
    mark = _mark(table)
    return {"mark": str(mark) if mark else None}


def greatest_commit(table: Any) -> int:
    """Read the greatest commit of a table's rows: one column, batch by batch."""
    import pyarrow.compute as pc

    reader = table.scan(selected_fields=(_COMMIT,)).to_arrow_batch_reader()
    return max((pc.max(batch.column(0)).as_py() or 0 for batch in reader), default=0)


def _mark(table: Any) -> int:
    moments = history(table)
    return moments[-1].applied if moments else 0
