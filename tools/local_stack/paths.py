"""Where things are: the environments that the bootstrap made, and the folders kept between runs."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
LOCAL = ROOT / ".local"
VENVS = LOCAL / "venvs"
JARS = LOCAL / "jars"
SPARK_4 = LOCAL / "spark-4"
"""Glue 6.0's Spark, where the bootstrap was asked for it."""

PROJECT_PYTHON = ROOT / ".venv" / "bin" / "python"
EMULATOR_PYTHON = VENVS / "emulator" / "bin" / "python"
BIGQUERY_PYTHON = VENVS / "bigquery" / "bin" / "python"
LAMBDA_PYTHON = VENVS / "lambda" / "bin" / "python"
SAM = VENVS / "sam" / "bin" / "sam"


PACKAGES = (
    ROOT / ".venv" / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    / "site-packages"
)  # fmt: skip
"""What the project's environment imports."""
