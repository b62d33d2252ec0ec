"""The Glue job: delivers to BigQuery what is too large for a function.

Arguments: ``--lake_bucket``, ``--buffer_table``, ``--deliver_queue_url``, ``--secret_prefix``,
``--region``, and ``--deltas_min``, from how many waiting deltas on a table is the job's. It is
started by ``functions/deliver``. The last line is a JSON summary; the run fails if a table could
not go on. Law D17: ``docs/spec/delivery.md``.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

import boto3

from lakesync.adapters.connect import read_connection
from lakesync.adapters.lake.s3 import S3Objects
from lakesync.delivery.deliverer import large_places
from lakesync.runtime import deliver, wiring
from lakesync.runtime.settings import DeliverSettings
from lakesync.systems.bigquery.bigquery_jobs import bigquery_jobs
from lakesync_spark.bigquery.large_delivery import LargeDelivery
from lakesync_spark.bigquery.run import run
from lakesync_spark.common.arguments import parse_bigquery_arguments
from lakesync_spark.common.session import start_session

if TYPE_CHECKING:
    from lakesync.delivery.table_context import TableContext
    from lakesync.systems.bigquery.bigquery_jobs import Jobs

TAKING_S_MAX: Final = 3_600
"""How long a run begins writes. It ends by itself long before its job's time-out; another run is
started for what it leaves."""


# Without slots: a script runs as ``__main__``, so Spark sends the class itself, and Spark 3.5 loses
# the fields of one with slots.
@dataclass(frozen=True)
class OpenObjects:
    """Opens the bucket, wherever it is sent."""

    region: str
    bucket: str

    def __call__(self) -> S3Objects:
        """Return its objects."""
        return S3Objects(self.bucket, boto3.client("s3", region_name=self.region))


@dataclass(frozen=True)
class OpenDataset:
    """Opens a destination's dataset, wherever it is sent.

    A task reads the secret by the job's own role: no credentials are in what Spark sends or keeps.
    """

    region: str
    secret: str

    def __call__(self) -> Jobs:
        """Return the dataset; nothing of BigQuery's is asked yet.

        Raises:
            LakeSyncError: the secret cannot be read, or is none.
        """
        # Google's federation signs for a region, which an executor is told by nobody.
        os.environ.setdefault("AWS_DEFAULT_REGION", self.region)
        client = boto3.client("secretsmanager", region_name=self.region)
        connection = read_connection(deliver.secret_text(client, self.secret))
        return bigquery_jobs(connection.url, connection.credentials)


def main() -> None:
    """Do one run."""
    arguments = parse_bigquery_arguments(sys.argv[1:])
    # Neither says in a job which region it is in; the SDK, and Google's federation, ask for it.
    os.environ.setdefault("AWS_DEFAULT_REGION", arguments.region)
    settings = DeliverSettings(
        region=arguments.region,
        endpoint=os.environ.get("AWS_ENDPOINT_URL"),
        buffer_table=arguments.buffer_table,
        lake_bucket=arguments.lake_bucket,
        deliver_queue_url=arguments.deliver_queue_url,
        secret_prefix=arguments.secret_prefix,
    )
    spark = start_session("materialise_bigquery", {})  # no table of the lake is read
    objects = OpenObjects(arguments.region, arguments.lake_bucket)

    def table_delivery(context: TableContext) -> LargeDelivery:
        secret = f"{arguments.secret_prefix}{context.gateway}/{context.destination.secret}"
        dataset = OpenDataset(arguments.region, secret)
        return LargeDelivery(context, spark, objects, dataset, arguments.deltas_min)

    ends = time.monotonic() + TAKING_S_MAX
    places = partial(
        large_places,
        wiring.buffer(settings),
        wiring.objects(settings, settings.lake_bucket),
        arguments.deltas_min,
    )
    queue = deliver.LateQueue(settings, settings.deliver_queue_url)
    deliverer = deliver.delivers(settings, table_delivery)
    report = run(spark, deliverer, places, queue, lambda: time.monotonic() < ends)
    print(report.as_json(), flush=True)  # noqa: T201 - the run's result
    if problem := report.problem():
        sys.exit(problem)


if __name__ == "__main__":
    main()
