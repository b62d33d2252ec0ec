"""The Glue job: joins small files of the lake's tables, expires snapshots, erases rows.

Arguments: ``--lake_bucket``, ``--database_prefix``, ``--catalog``, ``--lake_catalogue``,
``--stack`` as those of the other jobs, ``--snapshot_keep_days``, ``--only gateway`` or ``--only
gateway/table``, and ``--report_key``, an object for the report. The log's last line has the sums
that metric filters read; the run fails if a table did. Law L17: ``docs/spec/lake.md``.

With ``--erase_key``, an object that names rows of ``--only gateway/table``, it erases these, and
does nothing else. Laws E6 to E8: ``docs/spec/erasure.md``.

With ``--rebuild yes`` it makes the state table of ``--only gateway/table`` anew, and does nothing
else; with ``--rebuild dry`` it says what that would do. Law L23: ``docs/spec/lake.md``.
"""

from __future__ import annotations

import sys
import uuid
from functools import partial

import boto3
from botocore.config import Config

from lakesync.materialise.work_queue import LakeStore
from lakesync_spark.common.arguments import catalogue_settings, parse_maintenance_arguments
from lakesync_spark.common.report import say
from lakesync_spark.common.session import start_session
from lakesync_spark.iceberg.maintenance import TABLES_AT_ONCE_MAX, maintain
from lakesync_spark.iceberg.rebuild import rebuild
from lakesync_spark.iceberg.row_erasure import erase


def main() -> None:
    """Do one run."""
    arguments = parse_maintenance_arguments(sys.argv[1:])
    client = boto3.client("s3", config=Config(max_pool_connections=4 * TABLES_AT_ONCE_MAX))
    store = LakeStore(client, arguments.lake_bucket)
    settings = catalogue_settings(arguments, partial(boto3.client, "secretsmanager"))
    spark, run_id = start_session("maintain_lake", settings), uuid.uuid4().hex
    if arguments.erase_key:
        erased = erase(spark, store, arguments, run_id)
        store.put_if_unchanged(arguments.report_key, erased.as_json().encode(), None)
        return
    if arguments.rebuild:
        rebuilt = rebuild(spark, store, arguments, run_id)
        store.put_if_unchanged(arguments.report_key, rebuilt.as_json().encode(), None)
        return
    report = maintain(spark, store, arguments, run_id)
    if arguments.report_key:
        store.put_if_unchanged(arguments.report_key, report.as_json().encode(), None)
    say("lake", **report.sums())
    if problem := report.problem():
        sys.exit(problem)


if __name__ == "__main__":
    main()
