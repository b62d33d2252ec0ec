"""The Glue job: builds a gateway's checkpoint out of its state tables in the lake.

Arguments: ``--lake_bucket``, ``--database_prefix``, ``--catalog``, ``--lake_catalogue``,
``--stack`` as those of the other job, ``--chunk_bytes``, and ``--flushed``, how far the gateway was
flushed (`lakesync.checkpoint`). The last line is a JSON summary. Law L13:
``docs/spec/lake.md``.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from functools import partial

import boto3

from lakesync.adapters.lake.s3 import S3Objects
from lakesync.errors import LakeSyncError
from lakesync_spark.common.arguments import catalogue_settings, parse_checkpoint_arguments
from lakesync_spark.common.session import start_session
from lakesync_spark.iceberg.checkpoint import build


@dataclass(frozen=True)
class Bucket:
    """Opens the bucket, wherever it is sent."""

    name: str

    def __call__(self) -> S3Objects:
        """Return its objects."""
        return S3Objects(self.name, boto3.client("s3"))


def main() -> None:
    """Build."""
    arguments = parse_checkpoint_arguments(sys.argv[1:])
    settings = catalogue_settings(arguments, partial(boto3.client, "secretsmanager"))
    spark = start_session("build_checkpoint", settings)
    try:
        built = build(spark, Bucket(arguments.lake_bucket), arguments, time.time_ns() // 1_000_000)
    except LakeSyncError as error:
        sys.exit(f"{error.code}: {error}")
    summary = {**built._asdict(), "since": str(built.since)}
    print(json.dumps(summary), flush=True)  # noqa: T201 - the run's result


if __name__ == "__main__":
    main()
