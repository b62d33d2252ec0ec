"""Opens, where a task runs, what it needs: objects, and the dataset that a secret names.

A task is sent the secret's name and reads what is in it by the job's own role: no credentials are
in what Spark sends, writes down or logs.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import boto3

from lakesync.adapters.connect import bigquery_jobs, read_connection
from lakesync.adapters.lake.s3 import S3Objects
from lakesync.runtime.wiring_deliver import secret_text

if TYPE_CHECKING:
    from lakesync.adapters.bigquery.jobs import Jobs


@dataclass(frozen=True, slots=True)
class OpenObjects:
    """Opens the bucket, wherever it is sent."""

    region: str
    bucket: str

    def __call__(self) -> S3Objects:
        """Give its objects."""
        return S3Objects(self.bucket, boto3.client("s3", region_name=self.region))


@dataclass(frozen=True, slots=True)
class OpenDataset:
    """Opens a destination's dataset, wherever it is sent."""

    region: str
    secret: str

    def __call__(self) -> Jobs:
        """Give the dataset; nothing of BigQuery's is asked yet.

        Raises:
            LakeSyncError: the secret cannot be read, or is none.
        """
        # Google's federation signs for a region, which an executor is told by nobody.
        os.environ.setdefault("AWS_DEFAULT_REGION", self.region)
        client = boto3.client("secretsmanager", region_name=self.region)
        connection = read_connection(secret_text(client, self.secret))
        return bigquery_jobs(connection.url, connection.credentials)
