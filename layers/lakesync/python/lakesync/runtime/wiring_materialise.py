"""Builds what ``functions/materialise`` needs. Part of `lakesync.runtime.wiring`."""

from __future__ import annotations

import time
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from lakesync.core.claims import CLAIMS
from lakesync.materialise.groups import STARTING
from lakesync.runtime import wiring

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lakesync.materialise.small_batches import SmallBatches
    from lakesync.materialise.small_table import SmallTable
    from lakesync.runtime.settings import MaterialiseSettings

_AT_WORK: Final = frozenset({"STARTING", "RUNNING", "STOPPING", "WAITING"})
CLAIMS_LOOKED_AT_MAX: Final = 20_000
"""Claims whose age is checked to find how long the lake's oldest has waited: twenty calls, some
seconds. Beyond this number, the lag covers only those.
"""
_RUNS_LOOKED_AT: Final = 100
"""The latest. An older one that is still at work is not counted: Glue refuses what is too much."""


class GlueRuns:
    """`lakesync.runtime.materialise.Runs` by Glue and S3."""

    def __init__(self, glue: Any, job: str, s3: Any, bucket: str) -> None:
        self._glue = glue
        self._job = job
        self._s3 = s3
        self._bucket = bucket

    def waiting(self, enough: int) -> int:
        """Count the claims that wait, or only so many; a call for each thousand."""
        count = 0
        pages = self._s3.get_paginator("list_objects_v2").paginate(
            Bucket=self._bucket, Prefix=CLAIMS
        )
        for page in pages:
            count += len(page.get("Contents", []))
            if count >= enough:
                break
        return min(count, enough)

    def oldest(self) -> dict[str, float]:
        """Return by gateway how long its oldest claim has waited; one call for each thousand."""
        pages = self._s3.get_paginator("list_objects_v2").paginate(
            Bucket=self._bucket, Prefix=CLAIMS
        )
        claims = (claim for page in pages for claim in page.get("Contents", []))
        now, oldest = time.time(), dict[str, float]()
        for claim in islice(claims, CLAIMS_LOOKED_AT_MAX):
            gateway = claim["Key"].split("/")[1]
            age_s = now - claim["LastModified"].timestamp()
            oldest[gateway] = max(oldest.get(gateway, 0.0), age_s)
        return oldest

    @contextmanager
    def alone(self) -> Iterator[bool]:
        """Keep others from starting runs; gives False if another does so now."""
        from lakesync.materialise.lease import Lease  # noqa: PLC0415 - rarely needed
        from lakesync.materialise.storage import LakeStore  # noqa: PLC0415

        store = LakeStore(self._s3, self._bucket)
        lease = Lease.acquire_if_free(store, STARTING, f"start-{uuid4().hex}")
        with lease or nullcontext():
            yield lease is not None

    def at_work(self) -> int:
        """Count the runs that are at work, or about to be."""
        runs = self._glue.get_job_runs(JobName=self._job, MaxResults=_RUNS_LOOKED_AT)["JobRuns"]
        return sum(run["JobRunState"] in _AT_WORK for run in runs)

    def start(self) -> bool:
        """Start a run; False if as many as there may be are at work."""
        return start_run(self._glue, self._job)


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
    from lakesync.materialise.catalogue import LakeCatalogue  # noqa: PLC0415
    from lakesync.materialise.small_batches import SmallBatches  # noqa: PLC0415
    from lakesync.materialise.storage import LakeStore  # noqa: PLC0415

    s3 = wiring.client(settings, "s3", answer_s_max=5)
    store = LakeStore(s3, settings.lake_bucket)
    described = LakeCatalogue.from_json(settings.lake_catalogue)

    def open_tables() -> SmallTable:
        from pyiceberg.catalog import load_catalog  # noqa: PLC0415

        from lakesync.materialise.file_io import NAME  # noqa: PLC0415
        from lakesync.materialise.small_table import SmallTable  # noqa: PLC0415

        secret = described.read_secret(partial(wiring.client, settings, "secretsmanager"))
        given = described.python_settings(settings.region, settings.endpoint, secret)
        catalogue = load_catalog("lake", **given | {"py-io-impl": NAME})
        return SmallTable(store, catalogue, settings.database_prefix, settings.stack_id)

    run_id, merge_after_s = f"function-{uuid4().hex}", settings.merge_after_minutes * 60.0
    return SmallBatches(store, open_tables, settings.small_batch_deltas, run_id, merge_after_s)
