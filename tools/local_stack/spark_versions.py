"""The Sparks of Glue's versions: where each is on this machine, and which jars belong to it.

The project's environment has that of the template's default. The other is in a folder of its own,
which comes first on the path of who asks for it:

    tools/bootstrap.sh spark-4 && PYTHONPATH=.local/spark-4 .venv/bin/python -m pytest tests/glue
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tools.local_stack import paths
from tools.local_stack.errors import LocalStackError
from tools.local_stack.jars import (
    SPARK_4_ICEBERG,
    SPARK_4_S3,
    SPARK_ICEBERG,
    SPARK_S3,
    ensure_jars,
)

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class SparkVersion:
    """The Spark of one version of Glue."""

    glue: str
    packages: Path
    """The folder from which Python imports it."""
    s3: str
    """The section of the jars that Glue has in place."""
    iceberg: str
    """The section of what `--datalake-formats iceberg` adds."""

    @property
    def home(self) -> Path:
        """The folder for SPARK_HOME."""
        return self.packages / "pyspark"

    def s3_jars(self) -> list[Path]:
        """The jars that are in place always."""
        return ensure_jars(self.s3)

    def iceberg_jars(self) -> list[Path]:
        """The jars of Iceberg."""
        return ensure_jars(self.iceberg)

    def jars(self) -> list[Path]:
        """Both, in the order of the class path: the archive of classes belongs to one order."""
        return [*self.s3_jars(), *self.iceberg_jars()]


DEFAULT: Final = SparkVersion("5.1", paths.PACKAGES, SPARK_S3, SPARK_ICEBERG)
"""Spark 3.5."""
NEWER: Final = SparkVersion("6.0", paths.SPARK_4, SPARK_4_S3, SPARK_4_ICEBERG)
"""Spark 4.1."""
_BY_GLUE: Final = {each.glue: each for each in (DEFAULT, NEWER)}


def spark_of(glue: str) -> SparkVersion:
    """The Spark of a version of Glue.

    Raises:
        LocalStackError: Glue has no such version, or its Spark is not installed.
    """
    if glue not in _BY_GLUE:
        raise LocalStackError(f"choose a Glue version from {', '.join(_BY_GLUE)}: not {glue!r}.")
    spark = _BY_GLUE[glue]
    if not spark.home.exists():
        raise LocalStackError(f"run `tools/bootstrap.sh spark-4`: Glue {glue}'s Spark is missing.")
    return spark


def imported_spark() -> SparkVersion:
    """The Spark that this process imports: whichever is first on its path."""
    spec = importlib.util.find_spec("pyspark")
    places = spec.submodule_search_locations if spec else None
    return NEWER if places and str(NEWER.home) in places else DEFAULT
