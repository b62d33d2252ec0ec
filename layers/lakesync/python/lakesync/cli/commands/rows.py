"""`lakesync rows restore`: restore earlier values of rows, by deltas that sync everywhere.

A plan is a file with the deltas that do it, stamped once. Pushing a plan again pushes the same
deltas, which are duplicates, so a crash does no harm. What somebody wrote since the plan was made
is not in it, and is not overwritten by it. Laws H4-H6: ``docs/spec/history.md``.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

from lakesync.analysis.connection import FAILED, UsageFault
from lakesync.analysis.past import as_of, moment_text
from lakesync.cli.commands.history import Counts, Shown, commit_of, opened
from lakesync.cli.session import Session, command
from lakesync.core.clock import stamp
from lakesync.core.delta import NULL, Op, make_delta, parse
from lakesync.core.merge import written
from lakesync.core.wording import plural
from lakesync.errors import LakeSyncError, Retry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from lakesync.adapters.database import PlacedDelta
    from lakesync.analysis.lake_queries import LakeChanges, RowDiff
    from lakesync.cli.commands.history import Opened
    from lakesync.client import HttpTransport
    from lakesync.core.clock import Stamp
    from lakesync.core.delta import Delta
    from lakesync.core.messages import DeltaOutcome, PushReceipt

# --- the plan -------------------------------------------------------------------------------------


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
    return diff._replace(before=diff.after, after=diff.before)


def deltas_for(plan: Plan, change: RowDiff, now: Stamp) -> Iterator[Delta]:
    """Yield the deltas that restore a row; they win over all of its current writes. Pure.

    A column that had no value then becomes null.
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
    """Return the rows that were written since a plan was made; ``is_own`` knows its stamps."""
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


# --- restore --------------------------------------------------------------------------------------


CLIENT: Final = "restore"
"""The client that writes, unless another one is named."""
_BATCH_DELTAS: Final = 1_000
_TRIES_MAX: Final = 5
_WAIT_S_MAX: Final = 60
_LISTED_MAX: Final = 10


@command
def restore(
    session: Session,
    *,
    table: Annotated[str, typer.Argument(help="The rows' table.")],
    to: Annotated[
        str | None, typer.Option(help="A time (ISO-8601), a snapshot id, or a commit stamp.")
    ] = None,
    row: Annotated[
        list[str] | None, typer.Option(help="Restore only this row. Repeatable.")
    ] = None,
    where: Annotated[
        str, typer.Option(help="Restore only rows that match this SQL condition, now or then.")
    ] = "",
    by: Annotated[
        str, typer.Option(help="Undo only this client's writes, since --to or all of them.")
    ] = "",
    plan: Annotated[
        Path | None, typer.Option(help="The plan's file; by default restore-TABLE.plan.")
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an existing plan by a new one.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Write the plan and show it; push nothing.")
    ] = False,
) -> None:
    """Restore rows to their values at an earlier time, or undo the writes of one client.

    It writes a plan file, then pushes its deltas like any other edits: another restore can undo
    them. Rows that were written since the plan was made are skipped and listed. Repeat the command
    to continue an unfinished plan. Needs AWS credentials, and a token that satisfies the sync rules
    (`lakesync token --claim`). Exits with 1 if a delta was refused or a row was skipped.

    Example:
      lakesync rows restore todos --to 2026-11-21T10:00:00Z --dry-run
      lakesync rows restore todos --by phone-7 --to 2026-11-21 --where "list = 'home'"
    """
    session.speak_for(CLIENT)
    with session.out.progress("reading the lake …"):
        there = opened(session, table)
        wanted = _selection(session, there, to, (tuple(row or ()), where, by))
    path = plan or Path(f"restore-{wanted.table}.plan")
    made = _same(session, path, wanted) if path.exists() and not overwrite else None
    if made is None or dry_run:
        made = _make(session, there, wanted, path, is_all=dry_run)
    else:
        session.out.note(f"continuing {path}, of {moment_text(made.until)}")
    if not dry_run:
        _report(session, path, _carry_out(session, there, made, path))


def _selection(
    session: Session, there: Opened, to: str | None, only: tuple[tuple[str, ...], str, str]
) -> Selection:
    rows, where, by = only
    if to is None and not by:
        raise UsageFault("specify a time with --to, or with --by the client whose edits are undone")
    changes, tail = there.changes, there.tail
    if tail is None or tail.trimmed > changes.until:
        raise UsageFault("not all that was committed can be read, so nothing is restored")
    if changes.is_append:
        raise UsageFault(f"{changes.table} is an append table: its rows are never changed")
    if len(rows) > ROWS_NAMED_MAX:
        raise UsageFault(f"at most {ROWS_NAMED_MAX:,} rows can be named: use --where")
    if by == session.client_id:
        raise UsageFault(f"{by} is the client that restores: name another with --client")
    commit = 0 if to is None else commit_of(there.lake, as_of(to, "--to"))
    return Selection(session.connection.gateway, changes.table, commit, rows, where, by)


def _same(session: Session, path: Path, wanted: Selection) -> Plan:
    """Return the plan in a file, which this command may continue or replace."""
    made = read_plan(path)
    if made.selection != wanted:
        raise UsageFault(
            f"{path} is the plan of another restore: replace it with --overwrite, or name another "
            "file with --plan"
        )
    if session.client_id != made.client:
        raise UsageFault(
            f"{path} is the plan of client {made.client}: pass --client {made.client}, replace it "
            "with --overwrite, or name another file with --plan"
        )
    return made


def _make(session: Session, there: Opened, wanted: Selection, path: Path, *, is_all: bool) -> Plan:
    """Write a plan and show its first changes; with ``is_all``, print it as the answer."""
    from lakesync.analysis.lake_queries import matching, pasts, row_diffs

    tail = there.tail.deltas if there.tail else ()
    until = max(there.changes.until, there.tail.until if there.tail else 0)
    plan = Plan(wanted, session.client_id, until)
    now = stamp(time.time_ns() // 1_000_000)
    counts = Counts()
    first: list[RowDiff] = []
    with session.out.progress("comparing rows …"):
        span = (wanted.commit, until)
        with pasts(there.changes, tail, span, wanted.rows) as rows:
            delete_wins = there.changes.delete_wins(there.tail)
            every = row_diffs(rows, wanted.keeps, delete_wins=delete_wins)
            diffs = matching(every, wanted.where, there.changes.columns)
            changes = _sampled(counts.counted(map(restoring, diffs)), first)
            write_plan(path, plan, (d for each in changes for d in deltas_for(plan, each, now)))
    if not session.out.json_lines:
        Shown.of(first).print(session)
    if is_all:
        answer = {**counts.of, "plan": str(path)}
        rest = f"nothing was pushed; to push {path}, leave out --dry-run"
        session.out.answer(answer, f"{counts.sentence}; {rest}")
    else:
        session.out.note(f"{counts.sentence}, planned in {path}")
    return plan


def _sampled(changes: Iterable[RowDiff], first: list[RowDiff]) -> Iterator[RowDiff]:
    for change in changes:
        if len(first) < _LISTED_MAX:
            first.append(change)
        yield change


class Done(NamedTuple):
    """The outcome of a plan."""

    counts: Counter[str]
    refused: list[tuple[str, DeltaOutcome]]
    """Row ids, each with the reason of its refusal."""
    edited: dict[str, None]
    """Rows that were skipped, because they were edited since."""


def _carry_out(session: Session, there: Opened, plan: Plan, path: Path) -> Done:
    stamps = {delta.hlc for delta in planned(path, plan)}
    tail = there.tail.deltas if there.tail else ()
    edited = edited_since(there.changes, tail, plan, stamps.__contains__)
    done = Done(Counter(), [], {})
    transport = session.transport("admin")
    left = iter(planned(path, plan))
    with session.out.progress("pushing …"):
        while part := list(islice(left, _BATCH_DELTAS)):
            done.edited.update(dict.fromkeys(d.row_id for d in part if d.row_id in edited))
            wanted = [delta for delta in part if delta.row_id not in edited]
            _count(done, wanted, _pushed(transport, plan, wanted))
            session.out.note(f"{plural(done.counts['accepted'], 'delta')} pushed")
    return done


def _pushed(transport: HttpTransport, plan: Plan, deltas: list[Delta]) -> PushReceipt:
    from lakesync.core.messages import Push

    for tries in range(1, _TRIES_MAX + 1):
        try:
            return transport.push(Push(plan.client, tuple(enumerate(deltas))))
        except LakeSyncError as error:
            if error.retry is not Retry.LATER or tries == _TRIES_MAX:
                raise
            time.sleep(min(error.retry_after_s, _WAIT_S_MAX))
    raise AssertionError  # the last try returns or raises


def _count(done: Done, deltas: list[Delta], receipt: PushReceipt) -> None:
    done.counts["accepted"] += receipt.accepted
    for outcome in receipt.outcomes:
        if outcome.error is None:
            done.counts["duplicates"] += 1
        else:
            done.refused.append((deltas[outcome.index].row_id, outcome))


def _report(session: Session, path: Path, done: Done) -> None:
    reasons = {row: outcome.error for row, outcome in done.refused if outcome.error}
    answer = {
        **{name: done.counts[name] for name in ("accepted", "duplicates")},
        "refused": [{"rowId": r, "code": e.code, "error": e.message} for r, e in reasons.items()],
        "edited": list(done.edited),
    }
    for row, error in [] if session.out.json_lines else list(reasons.items())[:_LISTED_MAX]:
        session.out.note(f"refused: {row}: {error.code}: {error.message}")
    rest = " …" if len(done.edited) > _LISTED_MAX else ""
    listed = ", ".join(islice(done.edited, _LISTED_MAX)) + rest
    if done.edited:
        session.out.note(
            f"{plural(len(done.edited), 'row')} edited since the plan was made, and not "
            f"restored: {listed}; --overwrite makes a new plan"
        )
    duplicates = done.counts["duplicates"]
    already = f", of which {duplicates:,} were duplicates" if duplicates else ""
    count = plural(done.counts["accepted"], "delta")
    session.out.answer(answer, f"{count} accepted{already}")
    if reasons or done.edited:
        session.out.note(f"the plan is kept: {path}")
        raise typer.Exit(FAILED)
    path.unlink()
