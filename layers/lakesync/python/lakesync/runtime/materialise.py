"""The lake's functions: announcements become few runs, and jobs' packages come into its bucket.

The handler of ``functions/materialise``: runs find waiting batches by the claims on S3, and share
them, so a message only announces that there is something. Small batches are written into the lake
here, at once and without a run: those of the tables that the messages name, so that concurrent
invocations divide the work. For the others the number of claims decides how many runs there should
be.

The resource of the stack that puts what the Glue jobs install into the lake's bucket: `sam deploy`
uploads a job's script and nothing else of it, so the zips of wheels come as a layer, and
CloudFormation has this function copy them whenever the layer changes. Each content has a folder of
its own: a job that starts meanwhile installs the packages of its own release. Its name is the
resource's id, so CloudFormation asks for a replaced one to be removed once everything else is
updated, and after a rollback for the newer one. Protocol: CloudFormation User Guide, "Custom
resource request and response objects".
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import time
import urllib.request
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol
from uuid import uuid4

from lakesync.core.deliveries import CLAIMS, tables_of_message
from lakesync.materialise.work_queue import STARTING
from lakesync.runtime import observe, wiring
from lakesync.runtime.settings import LakeSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from lakesync.materialise.small_batches import SmallBatches, SmallTable, Taken
    from lakesync.runtime.observe import Handler
    from lakesync.runtime.settings import MaterialiseSettings

# --- the handler ----------------------------------------------------------------------------------


CLAIMS_PER_RUN: Final = 400
"""Claims for which one run is enough: it takes some minutes for them, and a run costs a minute at
the least.
"""
SMALL_TRIES_MAX: Final = 3
"""How often an announcement may have been received for its batches to be taken here: after that, a
batch that stops the function, for whatever reason, or that functions do not get to, is left to
Spark.
"""


SMALL_FAULTS: Final = "SmallBatchFaults"
"""Tables that the function failed at: a run does them, at the price of one. Alarmed if it lasts."""
LAKE_LAG: Final = "LakeLag"
"""How long the oldest batch has waited for the lake. Alarmed."""


class Small(Protocol):
    """What takes small batches without a run: `lakesync.materialise.small_batches`."""

    def take(
        self,
        seconds_left: Callable[[], float],
        announced: Iterable[str] = (),
        tried: Collection[str] = (),
    ) -> Taken:
        """Bring what waits of some tables into the lake, or of all, if it is small."""
        ...


class Runs(Protocol):
    """The runs of the Glue job, and what waits for them."""

    def waiting(self, enough: int) -> int:
        """Count the claims that wait, or only so many."""
        ...

    def oldest(self) -> Mapping[str, float]:
        """Return by gateway how long its oldest claim has waited, in seconds."""
        ...

    def alone(self) -> AbstractContextManager[bool]:
        """Keep others from starting runs; gives False if another does so now."""
        ...

    def at_work(self) -> int:
        """Count the runs that are at work, or about to be."""
        ...

    def start(self) -> bool:
        """Start a run; False if as many as there may be are at work."""
        ...


def materialise_handler(runs: Runs, runs_max: int, small: Small | None = None) -> Handler:
    """Return the handler of ``functions/materialise``.

    An announcement is completed once its tables' batches are in the lake, or a run was started for
    them, or only merges of what is in changes tables wait, which a later announcement or the sweep
    does. While enough runs are at work, or others work on a table, it returns to the queue: it
    may have arrived too late for those.

    An event that is not from a queue is from a schedule: it asks how far behind the lake is, which
    is reported whatever has become of announcements and runs.
    """

    def handler(event: dict[str, Any], context: Any) -> dict[str, Any]:
        if "Records" not in event:
            return _tell_lag(runs.oldest())
        records = [_Record(one) for one in event["Records"]]
        taken = None
        if small is not None and not any(one.is_tried and not one.tables for one in records):
            taken = _taken(small, records, context)
            _tell(taken)
            if not taken.left:
                return _answer(one for one in records if one.waits_for(taken.later))
        # A table is worked on by one run, whatever waits for it.
        tables = len(taken.left) if taken and "" not in taken.left else runs_max
        if _start(runs, min(runs_max, tables)):
            return _answer(())
        unfinished = taken and taken.left.keys() | taken.later
        return _answer(one for one in records if not unfinished or one.waits_for(unfinished))

    return handler


class _Record:
    def __init__(self, record: Mapping[str, Any]) -> None:
        self.message_id: str = record["messageId"]
        self.tables = tables_of_message(record["body"])
        """Each as ``gateway/table``; none if it announces no table's batch."""
        received = record.get("attributes", {}).get("ApproximateReceiveCount")
        self.is_tried = int(received or 1) > SMALL_TRIES_MAX

    def waits_for(self, tables: Collection[str]) -> bool:
        """Return whether what it announces may be among what is unfinished."""
        if "" in tables or not self.tables:
            return bool(tables)
        return not self.tables.isdisjoint(tables)


def _taken(small: Small, records: Sequence[_Record], context: Any) -> Taken:
    """Have what the announcements name brought in, or everything if one names nothing."""
    every = all(one.tables for one in records)
    return small.take(
        lambda: context.get_remaining_time_in_millis() / 1000,
        {table for one in records for table in one.tables} if every else (),
        {table for one in records if one.is_tried for table in one.tables},
    )


def _start(runs: Runs, runs_max: int) -> bool:
    """Start as many runs as are worth it; False if none was, because enough are at work.

    One function decides at a time: together they would start more than that.
    """
    waiting = runs.waiting(runs_max * CLAIMS_PER_RUN)
    if not waiting:
        return True
    started = 0
    with runs.alone() as alone:
        if alone:
            wanted = min(runs_max, -(-waiting // CLAIMS_PER_RUN)) - runs.at_work()
            while started < wanted and runs.start():
                started += 1
    observe.count("RunsStarted" if started else "RunsAtWork", started or 1)
    return bool(started)


def _answer(again: Iterable[_Record]) -> dict[str, Any]:
    observe.publish()
    return {"batchItemFailures": [{"itemIdentifier": one.message_id} for one in again]}


def _tell(taken: Taken) -> None:
    observe.count("SmallBatchDeltas", taken.deltas)
    observe.count("SmallBatchesLeft", len(taken.left))
    observe.count(SMALL_FAULTS, taken.faults)
    observe.count("MergesWaiting", len(taken.merges))
    if taken.left:
        say = observe.logger.warning if taken.faults else observe.logger.info
        say("left to a Glue run", extra={"reasons": taken.left})


def _tell_lag(oldest: Mapping[str, float]) -> dict[str, Any]:
    """Report how far the lake is behind: the greatest lag, and each gateway's if requested."""
    behind = max(oldest, key=lambda gateway: oldest[gateway], default=None)
    if behind is not None:
        observe.count(LAKE_LAG, max(oldest[behind], 0.001), "Seconds")
        observe.logger.info("waiting for the lake", extra={"gateway": behind, "of": len(oldest)})
    for gateway, seconds in oldest.items():
        observe.lake_lag(gateway, seconds)
    observe.publish()
    return {"waiting": len(oldest)}


# --- composition ----------------------------------------------------------------------------------


_AT_WORK: Final = frozenset({"STARTING", "RUNNING", "STOPPING", "WAITING"})
CLAIMS_LOOKED_AT_MAX: Final = 20_000
"""Claims whose age is checked to find how long the lake's oldest has waited: twenty calls, some
seconds. Beyond this number, the lag covers only those.
"""
_RUNS_LOOKED_AT: Final = 100
"""The latest. An older one that is still at work is not counted: Glue refuses what is too much."""


@dataclass
class GlueRuns:
    """`lakesync.runtime.materialise.Runs` by Glue and S3."""

    glue: Any
    job: str
    s3: Any
    bucket: str

    def waiting(self, enough: int) -> int:
        return sum(1 for _ in islice(self._claims(), enough))

    def oldest(self) -> dict[str, float]:
        now, oldest = time.time(), dict[str, float]()
        for claim in islice(self._claims(), CLAIMS_LOOKED_AT_MAX):
            gateway = claim["Key"].split("/")[1]
            age_s = now - claim["LastModified"].timestamp()
            oldest[gateway] = max(oldest.get(gateway, 0.0), age_s)
        return oldest

    def _claims(self) -> Iterator[Any]:
        """List the claims that wait; one call for each thousand."""
        pages = self.s3.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=CLAIMS)
        return (claim for page in pages for claim in page.get("Contents", []))

    @contextmanager
    def alone(self) -> Iterator[bool]:
        from lakesync.materialise.work_queue import (  # noqa: PLC0415 - rarely needed
            LakeStore,
            Lease,
        )

        store = LakeStore(self.s3, self.bucket)
        lease = Lease.acquire_if_free(store, STARTING, f"start-{uuid4().hex}")
        with lease or nullcontext():
            yield lease is not None

    def at_work(self) -> int:
        runs = self.glue.get_job_runs(JobName=self.job, MaxResults=_RUNS_LOOKED_AT)["JobRuns"]
        return sum(run["JobRunState"] in _AT_WORK for run in runs)

    def start(self) -> bool:
        return start_run(self.glue, self.job)


def start_run(glue: Any, job: str) -> bool:
    """Start a run of a job; False if as many as there may be are at work."""
    try:
        glue.start_job_run(JobName=job)
    except glue.exceptions.ConcurrentRunsExceededException:
        return False
    return True


def glue_runs(settings: MaterialiseSettings) -> GlueRuns:
    """Return the runs of the Glue job."""
    glue = wiring.client(settings, "glue", answer_s_max=4, attempts=2)
    s3 = wiring.client(settings, "s3", answer_s_max=2, attempts=2)
    return GlueRuns(glue, settings.glue_job, s3, settings.lake_bucket)


def small_batches(settings: MaterialiseSettings) -> SmallBatches | None:
    """Return the service that applies small batches without a run; None if that is switched off.

    Iceberg and Arrow are imported by the first batch that is small: most of a cold start.
    """
    if not settings.small_batch_deltas:
        return None
    from lakesync.materialise.lake_catalogue import LakeCatalogue  # noqa: PLC0415
    from lakesync.materialise.small_batches import SmallBatches  # noqa: PLC0415
    from lakesync.materialise.work_queue import LakeStore  # noqa: PLC0415

    s3 = wiring.client(settings, "s3", answer_s_max=5)
    store = LakeStore(s3, settings.lake_bucket)
    described = LakeCatalogue.from_json(settings.lake_catalogue)

    def open_tables() -> SmallTable:
        from pyiceberg.catalog import load_catalog  # noqa: PLC0415

        from lakesync.materialise.iceberg_table import FILE_IO  # noqa: PLC0415
        from lakesync.materialise.small_batches import SmallTable  # noqa: PLC0415

        secret = described.read_secret(partial(wiring.client, settings, "secretsmanager"))
        given = described.python_settings(settings.region, settings.endpoint, secret)
        catalogue = load_catalog("lake", **given | {"py-io-impl": FILE_IO})
        return SmallTable(store, catalogue, settings.database_prefix, settings.stack_id)

    run_id, merge_after_s = f"function-{uuid4().hex}", settings.merge_after_minutes * 60.0
    return SmallBatches(store, open_tables, settings.small_batch_deltas, run_id, merge_after_s)


# --- packages of the jobs -------------------------------------------------------------------------


FOLDER: Final = "lakesync_job_packages"
PREFIX: Final = "packages/"
SUFFIX: Final = ".gluewheels.zip"
VERSION: Final = "glue-version"
"""The file that says for which Glue the zips were built."""
UPLOAD_S_MAX: Final = 120
"""How long S3 may be silent while a zip is stored; the largest has 90 MB."""
ANSWER_S_MAX: Final = 10
"""How long CloudFormation may take to accept an answer."""
REASON_CHARS_MAX: Final = 1_000
"""CloudFormation takes 4,096 bytes of answer in all."""


@dataclass(frozen=True, kw_only=True)
class JobPackagesSettings(LakeSettings):
    """The environment of ``functions/job_packages``."""


def packages_folder() -> Path | None:
    """Return where the layer with the zips is, which has them where Python looks for modules."""
    spec = importlib.util.find_spec(FOLDER)
    folders = spec.submodule_search_locations if spec else None
    return Path(folders[0]) if folders else None


def job_packages_handler(
    settings: JobPackagesSettings, folder: Path | None, s3: Any = None
) -> Handler:
    """Return the handler of ``functions/job_packages``; every request is safe to repeat.

    Whatever goes wrong is answered as a failure with its reason: an exception would leave the
    deployment waiting until CloudFormation gives up.
    """
    zips = sorted(folder.glob(f"*{SUFFIX}")) if folder else []

    def handler(event: dict[str, Any], _: Any) -> None:
        answer: dict[str, Any] = {"Status": "SUCCESS"}
        try:
            client = s3 or wiring.client(settings, "s3", answer_s_max=UPLOAD_S_MAX)
            if event["RequestType"] == "Delete":
                answer["PhysicalResourceId"] = event["PhysicalResourceId"]
                _remove(zips, client, settings.lake_bucket, event["PhysicalResourceId"])
            else:
                _check(folder, zips, event["ResourceProperties"]["GlueVersion"])
                place, data = _put(zips, client, settings.lake_bucket)
                answer |= {"PhysicalResourceId": place, "Data": data}
        except Exception as error:  # noqa: BLE001 - see above
            observe.bug(error, request=str(event.get("RequestType")))
            reason = f"{type(error).__name__}: {error}"[:REASON_CHARS_MAX]
            answer["Status"] = "FAILED"
            answer["Reason"] = f"the packages of the Glue jobs could not be stored: {reason}"
            # CloudFormation asks to delete what failed, and wants an id in every answer.
            answer.setdefault("PhysicalResourceId", event.get("PhysicalResourceId", "none"))
        _answer_stack(event, answer)
        observe.publish()

    return handler


def _check(folder: Path | None, zips: list[Path], deployed: str) -> None:
    if folder is None or not zips:
        raise FileNotFoundError("the layer has no packages: build it with `sam build`")
    built_for = (folder / VERSION).read_text().strip()
    if built_for != deployed:
        raise ValueError(
            f"they were built for Glue {built_for}, and the stack has Glue {deployed}: give "
            f"`--parameter-overrides GlueVersion=...` to both `sam build` and `sam deploy`"
        )


def _put(zips: list[Path], s3: Any, bucket: str) -> tuple[str, Mapping[str, str]]:
    """Store the zips; returns their folder, and each one's address by its job."""
    digest = hashlib.sha256()
    for path in zips:
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    place = f"{PREFIX}{digest.hexdigest()[:16]}"
    data = {}
    for path in zips:
        key = f"{place}/{path.name}"
        with path.open("rb") as file:
            s3.put_object(Bucket=bucket, Key=key, Body=file)
        data[path.name.removesuffix(SUFFIX)] = f"s3://{bucket}/{key}"
    return place, data


def _remove(zips: list[Path], s3: Any, bucket: str, place: str) -> None:
    if not place.startswith(PREFIX):
        return
    for path in zips:
        try:
            s3.delete_object(Bucket=bucket, Key=f"{place}/{path.name}")
        except s3.exceptions.NoSuchBucket:
            return  # and nothing in it


def _answer_stack(event: dict[str, Any], answer: dict[str, Any]) -> None:
    same = {name: event[name] for name in ("StackId", "RequestId", "LogicalResourceId")}
    request = urllib.request.Request(  # noqa: S310 - CloudFormation's own address
        event["ResponseURL"],
        data=json.dumps(same | answer).encode(),
        method="PUT",
        # The address is signed for none.
        headers={"Content-Type": ""},
    )
    with urllib.request.urlopen(request, timeout=ANSWER_S_MAX):  # noqa: S310
        pass
