"""The committed protobuf code is what the schema gives; ``make proto`` renews it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.waiting import PATIENCE_S

SOURCES = Path(__file__).parents[2] / "layers" / "lakesync" / "python"
SCHEMA = "lakesync/wire/lakesync.proto"

# The generator writes its own release into the code; the rest is what matters.
RELEASE = re.compile(r"^# Protobuf Python Version: .*$|^    \d+,$", re.MULTILINE)


@pytest.mark.law("W5")
def test_generated_protobuf_code_is_current(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I", str(SOURCES)]
    outputs = [f"--python_out={tmp_path}", f"--pyi_out={tmp_path}", SCHEMA]
    subprocess.run([*command, *outputs], check=True, timeout=PATIENCE_S)

    for name in ("lakesync_pb2.py", "lakesync_pb2.pyi"):
        fresh = (tmp_path / "lakesync" / "wire" / name).read_text("utf-8")
        kept = (SOURCES / "lakesync" / "wire" / name).read_text("utf-8")

        assert RELEASE.sub("", kept) == RELEASE.sub("", fresh), "run `make proto`"
