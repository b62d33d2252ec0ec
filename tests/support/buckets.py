"""Databases in buckets under test."""

from __future__ import annotations

import itertools

import boto3

from lakesync.adapters.lake.s3_adapter import s3_adapter
from lakesync.adapters.objects import ObjectsDatabase

REGION = "us-east-1"
_numbers = itertools.count()


class BucketDatabases:
    """A bucket of its own at an endpoint that speaks S3's protocol."""

    def __init__(self, endpoint: str) -> None:
        self._bucket = f"ends-{next(_numbers)}"
        self._endpoint = endpoint
        client = boto3.client("s3", endpoint_url=endpoint, region_name=REGION)
        client.create_bucket(Bucket=self._bucket)

    def adapter(self, gateway: str) -> ObjectsDatabase:
        """Give the adapter of a gateway."""
        bucket = s3_adapter(self._bucket, endpoint=self._endpoint, region=REGION, path_style=True)
        return ObjectsDatabase(bucket, "folder/", gateway)
