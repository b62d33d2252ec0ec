"""Databases of Iceberg tables under test, in a catalogue of a folder's."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import boto3
from pyiceberg.catalog import load_catalog

from lakesync.adapters.connect import database_adapter
from lakesync.materialise.lake_catalogue import LakePlace
from lakesync.systems.iceberg.iceberg_database import IcebergDatabase
from tests.support.buckets import REGION

if TYPE_CHECKING:
    from pathlib import Path

    from pyiceberg.catalog import Catalog

_numbers = itertools.count()


class LakeDatabases:
    """A catalogue of its own: PyIceberg's of SQLite, whose files lie in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / f"lake-{next(_numbers)}"
        self.folder.mkdir()
        self._catalogue: Catalog | None = None

    @property
    def catalogue(self) -> Catalog:
        if self._catalogue is None:
            said: dict[str, Any] = {
                "type": "sql",
                "uri": f"sqlite:///{self.folder}/catalogue.db",
                "warehouse": f"file://{self.folder}",
            }
            self._catalogue = load_catalog("folder", **said)
        return self._catalogue

    @property
    def place(self) -> LakePlace:
        return LakePlace(lambda: self.catalogue, "ls", f"file://{self.folder}")

    def adapter(self, gateway: str = "g", *, history_ms: int | None = None) -> IcebergDatabase:
        return IcebergDatabase(self.place, gateway, history_ms=history_ms)

    def close(self) -> None:
        if self._catalogue is not None:
            self._catalogue.close()
            self._catalogue = None


class GlueDatabases:
    """Glue's catalogue and a bucket of its own, at an endpoint that speaks AWS's protocols."""

    def __init__(self, endpoint: str) -> None:
        number = next(_numbers)
        self._url = (
            f"iceberg://glue/lakes{number}?region={REGION}"
            f"&warehouse=s3://lakes-{number}/destinations/iceberg&endpoint={endpoint}"
        )
        client = boto3.client("s3", endpoint_url=endpoint, region_name=REGION)
        client.create_bucket(Bucket=f"lakes-{number}")

    def adapter(self, keeper: str) -> Any:
        return database_adapter(self._url, keeper)
