"""The Glue job: brings every batch that waits into its gateway's Iceberg tables.

Arguments: ``--lake_bucket``, ``--database_prefix``, ``--catalog``, ``--lake_catalogue``,
``--stack``, and ``--only gateway/table`` for one table. The last line is a JSON summary; the run
fails if anything needs somebody's attention. Promises: ``docs/spec/lake.md``.
"""

from __future__ import annotations

import sys
import uuid
from functools import partial

import boto3
from botocore.config import Config

from lakesync.materialise.sharing import KeptViews, Shares
from lakesync.materialise.views import GlueViews
from lakesync.materialise.work_queue import GATEWAY_GROUPS, LakeStore
from lakesync_spark.common.arguments import catalogue_settings, parse_arguments, region_of
from lakesync_spark.common.session import start_session
from lakesync_spark.iceberg.run import run


def main() -> None:
    """Do one run."""
    arguments = parse_arguments(sys.argv[1:])
    # Tables at work and leases that are renewed call S3 at the same time.
    client = boto3.client("s3", config=Config(max_pool_connections=GATEWAY_GROUPS))
    store = LakeStore(client, arguments.lake_bucket)
    region, glue = region_of(arguments.stack), None
    if arguments.catalogue.is_glue:  # Athena's views are there, or nowhere
        glue = GlueViews(boto3.client("glue", region_name=region))
    views = KeptViews(glue, Shares(store), arguments.database_prefix, arguments.stack)
    settings = catalogue_settings(arguments, partial(boto3.client, "secretsmanager"))
    spark = start_session("materialise_iceberg", settings)
    report = run(spark, store, arguments, uuid.uuid4().hex, views)
    print(report.as_json(), flush=True)  # noqa: T201 - the run's result
    if problem := report.problem():
        sys.exit(problem)


if __name__ == "__main__":
    main()
