"""What a benchmark says of a process's memory is that process's."""

from __future__ import annotations

import subprocess
import sys

from benchmarks.memory import peak_mb
from tests.support.repository import ROOT

OF_A_CHILD = "from benchmarks.memory import peak_mb; print(peak_mb())"
OF_A_PARENT = f"""
import subprocess, sys
large = b"x" * (200 << 20)
child = subprocess.run([sys.executable, "-c", {OF_A_CHILD!r}], capture_output=True, check=True)
from benchmarks.memory import peak_mb
print(peak_mb(), child.stdout.decode())
"""


def test_peak_memory_of_a_child_excludes_its_parent() -> None:
    said = subprocess.run(
        [sys.executable, "-c", OF_A_PARENT], capture_output=True, check=True, text=True, cwd=ROOT
    )
    parent, child = map(float, said.stdout.split())

    assert parent > 200
    assert child < 100


def test_peak_memory_includes_freed_memory() -> None:
    before = peak_mb()
    size = (int(before) + 50) << 20
    assert len(bytearray(b"x" * size)) == size

    assert peak_mb() > before + 49
