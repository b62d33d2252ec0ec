"""`lakesync gateways erase`: delete rows, and erase every stored copy of their values.

Behind the gateway's own part there are steps for batches, declared destinations and connectors.
Each reports what it waits for, and may be repeated. Batches are erased first, because fillings read
them.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from lakesync.analysis.connection import FAILED, UsageFault
from lakesync.cli.commands.gateways import now_ms, stores
from lakesync.cli.session import Session, audited, command, must_exist
from lakesync.connectors.state import erase_rows as erase_from_connectors
from lakesync.core.deliveries import CLAIMS, STAGING
from lakesync.core.wording import plural
from lakesync.errors import Conflict, Unavailable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lakesync.cli.erasure import AttachmentErasure
    from lakesync.ports import Buffer, ConnectorStore, ObjectStore, Queue, RowKey, WallClock

# --- steps ----------------------------------------------------------------------------------------


def outlets(session: Session) -> tuple[ConnectorStore, Queue]:
    from lakesync.adapters.lake.s3 import SqsQueue
    from lakesync.buffer.admin_stores import ItemConnectors

    aws = session.aws
    queue = SqsQueue(aws.output("DeliverQueueUrl"), aws.client("sqs"))
    return ItemConnectors(aws.items("BufferTable")), queue


@dataclass
class Steps:
    """Erases rows of one table from the stores that received them from the log, or sent them."""

    buffer: Buffer
    objects: ObjectStore
    """Stores batches, claims, and connectors' state."""
    store: ConnectorStore
    queue: Queue
    """Wakes deliveries."""
    gateway: str
    keys: Sequence[RowKey]
    wall_clock: WallClock
    destinations: list[str] | None = None
    """The destinations that were requested to erase; None before the request."""

    @property
    def table(self) -> str:
        return self.keys[0][0]

    def go_on(self) -> str:
        """Do all steps that are possible now; return what they wait for, empty once all is done."""
        return self._batches() or self._destinations() or self._connectors()

    def _batches(self) -> str:
        from lakesync.maintenance.erasure import set_aside, undelivered

        if names := undelivered(self.objects, self.gateway, self.table):
            return f"the destinations {', '.join(names)} to take its batches"
        if self.objects.list_objects(f"{CLAIMS}{self.gateway}/{self.table}/"):
            return "the lake to take its batches"
        if failed := set_aside(self.objects, self.gateway, self.table):
            raise Conflict(
                f"{plural(len(failed), 'claim')} of {self.table} could not succeed and need its "
                f"batches, the first is {failed[0]}: put them back (lakesync replay claims, or "
                "lakesync destinations replay), or delete them to give their batches up"
            )
        for key in self.objects.list_objects(f"{STAGING}{self.gateway}/{self.table}/"):
            self.objects.delete_object(key)
        return ""

    def _destinations(self) -> str:
        from lakesync.maintenance.erasure import ask_destinations, undelivered

        if self.destinations is None:
            declared = self.buffer.destinations(self.gateway)
            rows = [row for _, row in self.keys]
            self.destinations = ask_destinations(
                declared, self.objects, self.queue, self.gateway, self.table, rows
            )
        names = undelivered(self.objects, self.gateway, self.table)
        return f"the destinations {', '.join(names)} to erase them" if names else ""

    def _connectors(self) -> str:
        names = erase_from_connectors(
            self.store, self.objects, self.gateway, self.keys, self.wall_clock
        )
        return f"the connectors {', '.join(names)} to end their polls" if names else ""


# --- erase ----------------------------------------------------------------------------------------


_POLL_S: Final = 2.0
_REASONS: Final = {
    "flush": "the flush",
    "time": "a minute to pass since the deletion",
    "checkpoint": "a checkpoint behind the deletion",
    "later commits": "later commits that lie in one item with it",
}


@command
def erase(
    session: Session,
    *,
    name: Annotated[str, typer.Argument(help="The gateway's id.")],
    table: Annotated[str, typer.Argument(help="The rows' table.")],
    rows: Annotated[list[str], typer.Argument(help="The rows' ids.")],
    yes: Annotated[bool, typer.Option("--yes", help="Confirm: erase them permanently.")] = False,
    lake: Annotated[
        bool, typer.Option(help="Also erase them from the lake and from old versions.")
    ] = True,
    timeout: Annotated[
        int, typer.Option(help="Seconds to wait for the whole erasure.", min=1)
    ] = 3_600,
) -> None:
    """Delete rows and erase all their values: log, checkpoints, batches, lake, old versions.

    Attachments that the rows refer to, or ever referred to, are removed too, unless other rows
    refer to them. Devices drop the rows with their next pull; a device that is more than some
    minutes behind reads a checkpoint first. The command waits until the deletion is flushed and
    delivered, has declared destinations and connectors erase the rows, then starts a Glue run that
    rewrites the lake's files. Earlier snapshots of that table are lost. It counts what is left,
    exits with 0 if no value is left, and lists copies that it cannot erase: docs/operations.md.
    Safe to repeat and to interrupt. Needs AWS credentials.

    Example:
      lakesync gateways erase prod users ann --yes
    """
    from lakesync.maintenance.erasure import ROWS_MAX

    if not yes:
        raise UsageFault(f"this erases {plural(len(rows), 'row')} for good: pass --yes")
    if len(rows) > ROWS_MAX:
        raise UsageFault(f"at most {ROWS_MAX} rows are erased at a time")
    session.use(name)
    must_exist(session)
    keys = [(table, row) for row in dict.fromkeys(rows)]
    ends = time.monotonic() + timeout
    report = None
    # Not the ids of the rows: what is erased would stay in the record.
    target = f"{table}: {plural(len(keys), 'row')}"
    with audited(session, "eraseRows", target, partial(_rows_shown, session, name, keys)):
        files = _delete_with_files(session, name, keys)
        with session.out.progress(f"erasing {plural(len(keys), 'row')} …"):
            destinations = _erase(session, name, keys, ends)
        if lake:
            report = _erase_from_lake(session, name, keys, files, ends)
        files.remove()  # what somebody who was about to upload it brought meanwhile
    _tell(session, name, keys, destinations, report, files)


def _delete_with_files(session: Session, gateway: str, keys: Sequence[RowKey]) -> AttachmentErasure:
    """Delete the rows, then the files that they refer or referred to."""
    from lakesync.cli.erasure import AttachmentErasure

    files = AttachmentErasure(*stores(session), gateway, keys)
    files.look_into_rows()
    _delete(session, gateway, keys)
    with session.out.progress("looking for the attachments of the rows …"):
        files.look_into_past()
        files.remove()
    return files


def _delete(session: Session, gateway: str, keys: Sequence[RowKey]) -> None:
    from lakesync.cli.commands.client import pushed

    items = [
        {"op": "DELETE", "table": table, "rowId": row_id}
        for table, row_id in _with_values(session, gateway, keys)
    ]
    if not items:
        return
    refused = pushed(session, items).refused
    if refused:
        reason = refused[0].error.message if refused[0].error else refused[0].kind.name
        raise UsageFault(
            f"{plural(len(refused), 'row')} could not be deleted: {reason}; set LAKESYNC_TOKEN "
            "to one with --role admin and the --claim that the sync rules ask for (lakesync token)"
        )


def _rows_shown(session: Session, gateway: str, keys: Sequence[RowKey]) -> dict[str, int]:
    """Return for a record how many of the rows have values: a number, and nothing of theirs."""
    return {"rows": len(_with_values(session, gateway, keys))}


def _with_values(session: Session, gateway: str, keys: Sequence[RowKey]) -> list[RowKey]:
    from lakesync.wire.records import decode_row_state

    stored = stores(session)[0].rows(gateway, keys)
    return [key for key, row in stored.items() if decode_row_state(row.state).columns]


def _erase(session: Session, gateway: str, keys: Sequence[RowKey], deadline_s: float) -> list[str]:
    """Flush and erase until nothing is waited for; return the destinations that erased them."""
    from lakesync.checkpoint.store import Checkpoints
    from lakesync.maintenance.erasure import Eraser

    buffer, objects = stores(session)
    eraser = Eraser(buffer, objects, Checkpoints(objects), wall_clock=now_ms)
    steps = Steps(buffer, objects, *outlets(session), gateway, keys, now_ms)
    while True:
        session.admin("POST", "flush")
        report = eraser.erase(gateway, keys)
        waits_for = _REASONS[report.waits_for] if report.waits_for else steps.go_on()
        if not waits_for:
            return steps.destinations or []
        wait_s = max((report.ready_ms - now_ms()) / 1000, _POLL_S)
        if time.monotonic() + wait_s > deadline_s:
            raise Unavailable(f"the erasure still waits for {waits_for}; the same command goes on")
        time.sleep(wait_s)


def _erase_from_lake(
    session: Session,
    gateway: str,
    keys: Sequence[RowKey],
    files: AttachmentErasure,
    deadline_s: float,
) -> dict[str, Any]:
    """Remove the files that the lake's history names, then that; returns the job's report."""
    from lakesync.cli.erasure import erase_from_lake, lake_changes

    with session.out.progress("reading the lake's history …"):
        files.look_into_lake(lake_changes(session, gateway, keys[0][0]))
        files.remove()
    _, objects = stores(session)
    timeout_s = max(deadline_s - time.monotonic(), 1)
    return erase_from_lake(session, objects, gateway, keys, timeout_s)


def _tell(
    session: Session,
    gateway: str,
    keys: Sequence[RowKey],
    destinations: Sequence[str],
    report: dict[str, Any] | None,
    files: AttachmentErasure,
) -> None:
    """Count what is left: as `find-row` does, and what the lake's job counted."""
    from lakesync.cli.erasure import copies, left_in_lake, remarks

    buffer, objects = stores(session)
    left: dict[str, int] = {}
    with session.out.progress("looking for what is left …"):
        for key in keys:
            for store, number in copies(gateway, key, buffer, objects, None).items():
                left[store] = left.get(store, 0) + number
        left["attachments"] = files.left()
    left |= left_in_lake(report) if report else {}
    counted = ", ".join(f"{store} {number}" for store, number in left.items())
    answer = {
        "gateway": gateway, "table": keys[0][0], "rows": len(keys), "left": left,
        "destinations": list(destinations), "lake": report,
        "attachments": {"removed": sorted(files.removed), "shared": sorted(files.shared)},
    }  # fmt: skip
    session.out.answer(answer, f"{plural(len(keys), 'row')} erased; left: {counted}")
    if destinations:
        session.out.note(f"erased by the destinations {', '.join(destinations)}")
    for remark in files.remarks():
        session.out.note(remark)
    for remark in remarks(report) if report else ():
        session.out.note(remark)
    rest = "" if report else "the lake's history, old versions of objects, "
    session.out.note(
        f"not erased: {rest}backups, also those of databases, and devices that are offline; "
        "docs/operations.md says what removes them"
    )
    if any(left.values()):
        raise typer.Exit(FAILED)
