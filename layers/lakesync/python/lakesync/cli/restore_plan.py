"""A plan to restore rows: a file with the deltas that do it, stamped once.

Pushing a plan again pushes the same deltas, which are duplicates, so a crash does no harm. What
somebody wrote since the plan was made is not in it, and is not overwritten by it. Laws H4-H6:
``docs/spec/history.md``.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from lakesync.cli.faults import UsageFault
from lakesync.core.delta import Op, make_delta
from lakesync.core.row_deltas import written
from lakesync.core.values import NULL, parse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from lakesync.adapters.database import PlacedDelta
    from lakesync.cli.changes import LakeChanges
    from lakesync.cli.rows_past import RowDiff
    from lakesync.core.clock import Stamp
    from lakesync.core.delta import Delta

VERSION: Final = 1
ROWS_NAMED_MAX: Final = 1_000
"""Rows that one restore may name; for more, use conditions."""


@dataclass(frozen=True)
class Selection:
    """What to restore: rows as of a commit, or only the writes of one client since then."""

    gateway: str
    table: str
    commit: Stamp
    """The commit to which rows are restored."""
    rows: tuple[str, ...] = ()
    """The row ids to restore; empty for all."""
    where: str = ""
    """A condition on rows, on their current or former values."""
    by: str = ""
    """Undo only writes of this client since then; empty for all writes."""

    def keeps(self, one: PlacedDelta) -> bool:
        """Return whether a delta is kept."""
        is_early = one.position.commit <= self.commit
        return is_early or bool(self.by and one.delta.client_id != self.by)


@dataclass(frozen=True)
class Plan:
    """The head of a plan's file."""

    selection: Selection
    client: str
    """The client that writes the deltas."""
    until: Stamp
    """The last commit that was read for the plan."""


def restoring(diff: RowDiff) -> RowDiff:
    """Return the writes of a restore to a row: the differences from current to former values."""
    return diff._replace(before=diff.after, after=diff.before)


def deltas_for(plan: Plan, change: RowDiff, now: Stamp) -> Iterator[Delta]:
    """Yield the deltas that restore a row; they win over all of its current writes. Pure.

    A column that had no value then becomes null.

    Args:
        plan: the plan of the deltas.
        change: the difference from current to former values.
        now: the current stamp.
    """
    hlc = max(now, change.newest + 1)
    if change.after is None:
        op, columns = Op.DELETE, []
    elif change.before is None:
        unseen = dict.fromkeys(change.unseen, NULL)
        op, columns = Op.INSERT, sorted({**unseen, **change.after}.items())
    else:
        op = Op.UPDATE
        columns = [(name, change.after.get(name, NULL)) for name in change.columns]
    yield from written(op, plan.selection.table, change.row_id, plan.client, hlc, columns)


def write_plan(path: Path, plan: Plan, deltas: Iterable[Delta]) -> None:
    """Write a plan atomically. It contains values, so only its owner may read the file."""
    unfinished = path.with_name(f".{path.name}.unfinished")
    unfinished.unlink(missing_ok=True)
    try:
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(json.dumps({"restorePlan": VERSION, **asdict(plan)}) + "\n")
            for delta in deltas:
                file.write(json.dumps(_line(delta), ensure_ascii=False) + "\n")
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def read_plan(path: Path) -> Plan:
    """Return the head of a plan.

    Raises:
        UsageFault: the file is not a plan.
    """
    try:
        with path.open(encoding="utf-8") as file:
            head = json.loads(file.readline())
        selection = head["selection"]
        rows = tuple(selection.pop("rows"))
        plan = Plan(Selection(**selection, rows=rows), head["client"], head["until"])
        is_known = head["restorePlan"] == VERSION
    except (KeyError, TypeError, ValueError) as exc:
        raise UsageFault(f"{path} is not a plan: remove it, or name another with --plan") from exc
    if not is_known:
        raise UsageFault(f"{path} is a plan of another release: remove it")
    return plan


def planned(path: Path, plan: Plan) -> Iterator[Delta]:
    """Yield the deltas of a plan, one after the other."""
    with path.open(encoding="utf-8") as file:
        file.readline()
        for line in file:
            row = json.loads(line)
            yield make_delta(
                Op[row["op"]],
                plan.selection.table,
                row["rowId"],
                row["columns"],
                client_id=plan.client,
                hlc=int(row["hlc"]),
            )


def edited_since(
    changes: LakeChanges, tail: Iterable[PlacedDelta], plan: Plan, is_own: Callable[[Stamp], bool]
) -> set[str]:
    """Return the rows that were written since a plan was made.

    Args:
        changes: the deltas in the lake.
        tail: the later deltas in the log.
        plan: the plan.
        is_own: whether a stamp of the plan's client is the plan's.
    """
    from pyiceberg.expressions import GreaterThan

    def is_foreign(client: str, hlc: Stamp) -> bool:
        return client != plan.client or not is_own(hlc)

    edited = {
        one.delta.row_id
        for one in tail
        if one.position.commit > plan.until and is_foreign(one.delta.client_id, one.delta.hlc)
    }
    make: Any = GreaterThan  # its own type knows nothing of positions
    for batch in changes.scan(make("_commit", plan.until), ("_id", "_client_id", "_hlc")):
        edited |= {
            row["_id"] for row in batch.to_pylist() if is_foreign(row["_client_id"], row["_hlc"])
        }
    return edited


def _line(delta: Delta) -> dict[str, object]:
    columns = {name: parse(value) for name, value in delta.columns}
    return {"op": delta.op.name, "rowId": delta.row_id, "hlc": str(delta.hlc), "columns": columns}
