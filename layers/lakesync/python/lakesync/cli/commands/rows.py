"""`lakesync rows restore`: restore earlier values of rows, by deltas that sync everywhere."""

from __future__ import annotations

import time
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import typer

from lakesync.cli.asof import as_of
from lakesync.cli.cells import moment_text
from lakesync.cli.commands.diff import Counts, Shown, commit_of, opened
from lakesync.cli.faults import FAILED, UsageFault
from lakesync.cli.restore_plan import (
    ROWS_NAMED_MAX,
    Plan,
    Selection,
    deltas_for,
    edited_since,
    planned,
    read_plan,
    restoring,
    write_plan,
)
from lakesync.cli.session import Session, command
from lakesync.core.clock import stamp
from lakesync.core.plural import plural
from lakesync.errors import LakeSyncError, Retry

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from lakesync.cli.commands.diff import Opened
    from lakesync.cli.rows_past import RowDiff
    from lakesync.client import HttpTransport
    from lakesync.core.delta import Delta
    from lakesync.core.messages import DeltaOutcome, PushReceipt

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
    """Return the requested restore.

    Raises:
        UsageFault: it cannot be restored.
    """
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
    """Return the plan in a file, which this command may continue or replace.

    Raises:
        UsageFault: it is the plan of another restore, or of another client.
    """
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
    from lakesync.cli.row_filter import matching
    from lakesync.cli.rows_past import pasts, row_diffs

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
    """Push a plan, except for rows that were edited since."""
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
    """Push deltas, waiting as long as the gateway asks."""
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
    """Print the outcome, and remove the plan if all of it is done."""
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
