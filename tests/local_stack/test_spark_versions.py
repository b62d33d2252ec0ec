"""Each version of Glue that the template offers has its Spark here, and the jars that fit it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.infrastructure.stack import template
from tools.local_stack import paths, spark_versions
from tools.local_stack.errors import LocalStackError
from tools.local_stack.jars import LOCK, locked
from tools.local_stack.spark_versions import DEFAULT, NEWER, SparkVersion, imported_spark, spark_of

if TYPE_CHECKING:
    from pathlib import Path

OFFERED = template()["Parameters"]["GlueVersion"]


def test_environment_has_the_spark_of_the_default_glue_version() -> None:
    assert spark_of(OFFERED["Default"]) is DEFAULT
    assert (DEFAULT.home / "jars").is_dir()


def test_each_glue_version_of_the_template_has_a_spark_version() -> None:
    assert set(spark_versions._BY_GLUE) == set(OFFERED["AllowedValues"])


@pytest.mark.parametrize(("spark", "lock"), [(DEFAULT, "dev"), (NEWER, "spark-4")])
def test_iceberg_runtime_matches_the_pinned_spark_version(spark: SparkVersion, lock: str) -> None:
    requirements = (paths.ROOT / "requirements" / f"{lock}.lock").read_text()
    pinned = re.search(r"^pyspark==(\d+\.\d+)\.", requirements, re.MULTILINE)
    assert pinned is not None
    [runtime] = locked(LOCK.read_text(), spark.iceberg)
    assert runtime.name.startswith(f"iceberg-spark-runtime-{pinned[1]}_")
    [bundle] = [one for one in locked(LOCK.read_text(), spark.s3) if "iceberg" in one.name]
    assert bundle.version == runtime.version


def test_uninstalled_and_unknown_glue_versions_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    missing = SparkVersion(NEWER.glue, tmp_path, NEWER.s3, NEWER.iceberg)
    monkeypatch.setattr(spark_versions, "_BY_GLUE", {"6.0": missing})
    with pytest.raises(LocalStackError, match=r"tools/bootstrap\.sh spark-4"):
        spark_of("6.0")
    with pytest.raises(LocalStackError, match=r"choose a Glue version from 6\.0: not '4\.0'"):
        spark_of("4.0")


def test_imported_spark_is_the_first_on_the_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first = SparkVersion(NEWER.glue, tmp_path, NEWER.s3, NEWER.iceberg)
    first.home.mkdir()
    (first.home / "__init__.py").touch()
    monkeypatch.setattr(spark_versions, "NEWER", first)
    monkeypatch.delitem(__import__("sys").modules, "pyspark", raising=False)
    assert imported_spark() is not first
    monkeypatch.syspath_prepend(str(tmp_path))
    assert imported_spark() is first
