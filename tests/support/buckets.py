"""Databases in buckets under test."""

from __future__ import annotations

import itertools

import boto3

from lakesync.adapters.history_archive import HistoryArchive
from lakesync.adapters.lake.s3_adapter import S3Adapter, s3_adapter
from lakesync.systems.objects import ObjectsDatabase

REGION = "us-east-1"
_numbers = itertools.count()


class BucketDatabases:
    """A bucket of its own at an endpoint that speaks S3's protocol; without one, in moto."""

    def __init__(self, endpoint: str = "") -> None:
        self._bucket = f"ends-{next(_numbers)}"
        self._endpoint = endpoint or None
        client = boto3.client("s3", endpoint_url=self._endpoint, region_name=REGION)
        client.create_bucket(Bucket=self._bucket)

    def adapter(self, gateway: str) -> ObjectsDatabase:
        return ObjectsDatabase(self._objects(), "folder/", gateway)

    def archive(self, keeper: str) -> HistoryArchive:
        return HistoryArchive(self._objects(), "archive/", keeper)

    def _objects(self) -> S3Adapter:
        return s3_adapter(self._bucket, endpoint=self._endpoint, region=REGION, path_style=True)
