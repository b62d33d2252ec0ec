"""The gateway's tables in the lake: their status and views, and their maintenance by the job.

Figures are those that `glue_jobs/lakesync_spark/iceberg/table_files.py` computes for the job, so
the command line shows the maintenance that the job would do.

A mark is lost if the tag ``lakesync`` was dropped and the snapshots that carry the mark expired. It
is in the rows too: each delta of a changes or events table carries its commit, and a batch ends
with a commit that has one; each row of a state table carries the mark that came with its last
change. So the greatest ``_commit`` of a table is its mark. Law L18: ``docs/spec/lake.md``.

The job sets claims aside that cannot succeed; they are listed and put back here.
"""

from __future__ import annotations

import json
import time
import uuid
from collections import Counter
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from botocore.exceptions import ClientError

from lakesync.analysis.connection import UsageFault, objects_under
from lakesync.analysis.lake import declared_columns, history
from lakesync.analysis.shared_lake import shares_of
from lakesync.cli.session import listed
from lakesync.core.clock import stamp_ms
from lakesync.core.deliveries import CLAIMS, CLAIMS_FAILED
from lakesync.core.names import CHANGES_SUFFIX
from lakesync.errors import NotFound, Unavailable
from lakesync.maintenance.lake_plan import SMALL_FILE_BYTES_MAX, SMALL_FILES_MAX, TableFigures
from lakesync.materialise.lake_schema import (
    CHANGES_TABLE,
    KIND,
    KINDS,
    STACK,
    LakeColumn,
    delete_wins,
)
from lakesync.materialise.sharing import shared_database, shared_views
from lakesync.materialise.views import ViewedTable, views_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from lakesync.analysis.connection import Aws
    from lakesync.analysis.lake import Lake
    from lakesync.cli.session import Session
    from lakesync.materialise.views import GlueViews, View

# --- figures --------------------------------------------------------------------------------------


_DATA: Final = 0


def lake_figures(session: Session, table: str | None) -> dict[str, dict[str, Any]]:
    """Return the figures of one table and its history, or of all; every unnamed snapshot is old."""
    from lakesync.analysis.lake import Lake

    lake = Lake(session.aws, session.connection.gateway)
    now_ms = time.time_ns() // 1_000_000
    return {name: figures(lake.table(name), now_ms)._asdict() for name in lake.names_of(table)}


def figures(table: Any, older_than_ms: int) -> TableFigures:
    """Return a table's figures; snapshots before ``older_than_ms`` are old."""
    snapshot = table.current_snapshot()
    if snapshot is None:
        return TableFigures()
    summary = snapshot.summary.additional_properties if snapshot.summary else {}

    def total(name: str) -> int:
        return int(summary.get(f"total-{name}") or 0)

    named = {ref.snapshot_id for ref in table.metadata.refs.values()}
    snapshots = table.snapshots()
    old = [one for one in snapshots if one.snapshot_id not in named]
    files, dead = total("data-files"), total("position-deletes")
    return TableFigures(
        files=files,
        delete_files=total("delete-files"),
        rows=total("records") - dead,
        dead_rows=dead,
        bytes=total("files-size"),
        snapshots=len(snapshots),
        old_snapshots=sum(one.timestamp_ms < older_than_ms for one in old),
        manifests=len(snapshot.manifests(table.io)),
        small_files=_small_files(table, snapshot) if files > SMALL_FILES_MAX else files,
    )


def _small_files(table: Any, snapshot: Any) -> int:
    counts = Counter(
        (file.spec_id, repr(file.partition))
        for file in _files(table, snapshot)
        if file.content == _DATA and file.file_size_in_bytes < SMALL_FILE_BYTES_MAX
    )
    return max(counts.values(), default=0)


def _files(table: Any, snapshot: Any) -> Iterator[Any]:
    for manifest in snapshot.manifests(table.io):
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
            yield entry.data_file


# --- status ---------------------------------------------------------------------------------------


def table_states(
    aws: Aws, lake: Lake, gateway: str, table: str | None
) -> Iterator[dict[str, object]]:
    """Yield the report of each table, or of one with its history."""
    waiting = _waiting(aws, gateway)
    for name in lake.names_of(table):
        each = lake.table(name)
        now = figures(each, 0)
        moments = history(each)
        mark = moments[-1].applied if moments else 0
        claims, oldest_s = waiting.get(name.removesuffix(CHANGES_SUFFIX), (0, 0.0))
        yield {
            "table": name,
            "rows": now.rows,
            "files": now.files,
            "small": now.small_files,
            "delete files": now.delete_files,
            "dead rows": now.dead_rows,
            "snapshots": now.snapshots,
            "bytes": now.bytes,
            "mark": str(mark),
            "goes to": _time(mark),
            "waiting": claims,
            "lag s": round(oldest_s),
        }


def _waiting(aws: Aws, gateway: str) -> dict[str, tuple[int, float]]:
    """Return by table the number of announced batches that it lacks, and the age of the oldest."""
    now, waiting = time.time(), dict[str, tuple[int, float]]()
    for entry in objects_under(aws, f"{CLAIMS}{gateway}/"):
        table = entry["Key"].split("/")[2]
        count, oldest_s = waiting.get(table, (0, 0.0))
        waiting[table] = count + 1, max(oldest_s, now - entry["LastModified"].timestamp())
    return waiting


def _time(mark: int) -> str | None:
    if not mark:
        return None
    moment = datetime.fromtimestamp(stamp_ms(mark) / 1000, UTC)
    return moment.isoformat(timespec="seconds")


# --- lost marks -----------------------------------------------------------------------------------


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
    """Report for each table whether its mark is lost, and which one it gets."""
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


# --- views ----------------------------------------------------------------------------------------


def viewed_tables(lake: Lake, table: str | None) -> Iterator[ViewedTable]:
    """Return the state and events tables of a gateway, or one; other tables are left out."""
    for name in lake.names_of(table):
        each = lake.table(name)
        kind = KINDS.get(each.properties.get(KIND, ""))
        if kind is None or kind == CHANGES_TABLE:
            continue
        database, lake_name = each.name()[-2:]
        columns = [LakeColumn(n, t, written) for n, (t, written) in declared_columns(each).items()]
        comments = {field.name: field.doc or "" for field in each.schema().fields}
        stack = each.properties.get(STACK, "")
        wins = delete_wins(each.properties)
        yield ViewedTable(database, lake_name, kind, tuple(columns), stack, comments, wins)


def views_of_share(aws: Aws, name: str, engine: str, catalogue: str) -> list[tuple[str, View]]:
    """Return the views that a shared table reads, then its own, each with its database."""
    share = shares_of(aws).read(name)
    if share is None:
        raise NotFound(f"there is no shared table {name[:64]!r}: see lakesync lake status")
    place = shared_database(aws.output("DatabasePrefix"))
    over = ((one.database, view) for one in share.members.values()
            for view in views_of(one.viewed(), engine, catalogue))  # fmt: skip
    return [*over, *((place, view) for view in shared_views(share, engine, catalogue))]


def share_shown(aws: Aws, name: str) -> dict[str, object]:
    """Return a share's tables, for an audit record."""
    share = shares_of(aws).read(name)
    if share is None:
        return {"shared": False}
    said = {"shared": True, "table": share.table, "gateways": share.gateways}
    return {**said, "members": listed(list(share.members))}


def views_shown(glue: GlueViews, tables: Sequence[ViewedTable]) -> dict[str, object]:
    """Return which of the tables' views are outdated, and why, for an audit record."""
    wrong = [f"{name}: {why}" for each in tables for name, why in glue.wrong(each).items()]
    return {"tables": len(tables), "wrong": listed(wrong)}


# --- runs of the job ------------------------------------------------------------------------------


_POLL_S: Final = 2.0
_AT_WORK: Final = frozenset({"STARTING", "RUNNING", "STOPPING", "WAITING"})


def run_job(
    session: Session, only: str, timeout_s: float, arguments: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Run the stack's job on a gateway, or on ``gateway/table``; return its report.

    If it fails, or takes longer, what it has done stays done.
    """
    glue, job = session.aws.client("glue"), session.aws.output("MaintainJobName")
    report_key = f"maintenance/{uuid.uuid4().hex}.json"
    given = {"--only": only, "--report_key": report_key, **(arguments or {})}
    ends = time.monotonic() + timeout_s
    run_id = _started(glue, job, given, ends)
    with session.out.progress(f"the Glue run {run_id[:12]} is at work …"):
        while (run := glue.get_job_run(JobName=job, RunId=run_id)["JobRun"])[
            "JobRunState"
        ] in _AT_WORK:
            if time.monotonic() > ends:
                raise Unavailable(
                    f"the Glue run {run_id} is still at work after {timeout_s:.0f} s, and goes on "
                    "by itself; look again with `lakesync lake status`"
                )
            time.sleep(_POLL_S)
    if run["JobRunState"] != "SUCCEEDED":
        raise Unavailable(
            f"the Glue run {run_id} ended as {run['JobRunState']}: "
            f"{run.get('ErrorMessage', '').strip() or 'see its log'}; what it did is done"
        )
    body = session.aws.client("s3").get_object(
        Bucket=session.aws.output("LakeBucket"), Key=report_key
    )["Body"]
    report: dict[str, Any] = json.loads(body.read())
    return report


def keep_days(session: Session) -> int:
    job = session.aws.client("glue").get_job(JobName=session.aws.output("MaintainJobName"))["Job"]
    return int(job["DefaultArguments"]["--snapshot_keep_days"])


def _started(glue: Any, job: str, given: Mapping[str, str], ends: float) -> str:
    """Start a run as soon as the limit of concurrent runs allows."""
    while True:
        try:
            run_id: str = glue.start_job_run(JobName=job, Arguments=given)["JobRunId"]
        except glue.exceptions.ConcurrentRunsExceededException as exc:
            if time.monotonic() > ends:
                raise Unavailable(
                    f"as many runs of {job} are at work as may be; repeat it when one has ended"
                ) from exc
            time.sleep(_POLL_S)
        else:
            return run_id


# --- claims set aside -----------------------------------------------------------------------------


def set_aside(aws: Aws, gateway: str) -> Iterator[dict[str, str]]:
    """Yield each claim of a gateway that was set aside: its key and the reason."""
    client, bucket = aws.client("s3"), aws.output("LakeBucket")
    for claim in _names(aws, gateway):
        answer = client.head_object(Bucket=bucket, Key=CLAIMS_FAILED + claim)
        yield {"claim": claim, "reason": answer.get("Metadata", {}).get("reason", "")}


def claims_shown(aws: Aws, gateway: str) -> dict[str, object]:
    return {"setAside": listed(list(_names(aws, gateway)))}


def _names(aws: Aws, gateway: str) -> Iterator[str]:
    for item in objects_under(aws, f"{CLAIMS_FAILED}{gateway}/"):
        yield item["Key"].removeprefix(CLAIMS_FAILED)


def put_back(aws: Aws, claims: list[str]) -> int:
    """Put claims back and announce them; return their number. Safe to repeat."""
    client, bucket = aws.client("s3"), aws.output("LakeBucket")
    moved = 0
    for claim in claims:
        body = _body(client, bucket, CLAIMS_FAILED + claim)
        if body is None:
            continue  # another process has put it back
        # Written before the other is deleted: a claim that exists twice is applied once.
        client.put_object(
            Bucket=bucket, Key=CLAIMS + claim, Body=body, ContentType="application/json"
        )
        client.delete_object(Bucket=bucket, Key=CLAIMS_FAILED + claim)
        moved += 1
    if moved:
        url = aws.output("AnnounceQueueUrl")
        aws.client("sqs").send_message(QueueUrl=url, MessageBody='{"replayed": true}')
    return moved


def _body(client: Any, bucket: str, key: str) -> bytes | None:
    try:
        body: bytes = client.get_object(Bucket=bucket, Key=key)["Body"].read()
    except ClientError as error:
        if error.response["Error"]["Code"] in {"NoSuchKey", "404"}:
            return None
        raise
    return body
