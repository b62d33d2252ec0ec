"""One Spark session for the whole folder; a gateway and a store of its own for each test."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.glue.support.files import FileStore
from tests.glue.support.lake import Lake
from tests.glue.support.spark import COMPILED, INTERPRETED, start_spark

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

_numbers = itertools.count(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Allow what is not ours: Py4J closes idle connections only when they are collected."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore:.*unclosed <socket:ResourceWarning"))
            item.add_marker(
                pytest.mark.filterwarnings(
                    "ignore:.*socket.socket:pytest.PytestUnraisableExceptionWarning"
                )
            )
            # Spark 3.5 looks at the version of pandas so.
            item.add_marker(
                pytest.mark.filterwarnings("ignore:distutils Version classes:DeprecationWarning")
            )


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    session = start_spark(tmp_path_factory.mktemp("lake"))
    yield session
    session.stop()


@pytest.fixture
def compiled(spark: SparkSession) -> Iterator[None]:
    """Have plans compiled, as they are outside tests: for what is held against `lakesync.core`."""
    for name, value in COMPILED.items():
        spark.conf.set(name, value)
    yield
    for name, value in INTERPRETED.items():
        spark.conf.set(name, value)


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Lake:
    return Lake(spark, FileStore(tmp_path), f"g{next(_numbers)}")
