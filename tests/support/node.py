"""Node.js as an independent implementation: one process for a whole batch of cases."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest

REASON: Final = "LAKESYNC_WITHOUT_NODE"
"""The variable with the reason why Node.js cannot be had."""
needs_node = pytest.mark.skipif(
    bool(os.environ.get(REASON)), reason=f"without Node.js: {os.environ.get(REASON)}"
)
SCRIPTS = Path(__file__).parents[1] / "core"


def run_node(script: str, cases: object) -> Any:
    """Run a script of ``tests`` with the cases as JSON on its input; give its JSON answer.

    Without Node the test fails, since nothing else shows that other languages agree. Where Node
    cannot be had, ``LAKESYNC_WITHOUT_NODE`` holds the reason, and the test is left out with it.

    Args:
        script: its path from ``tests/core``.
    """
    reason = os.environ.get(REASON)
    if reason:
        pytest.skip(f"without Node.js: {reason}")
    node = shutil.which("node")
    if node is None:
        pytest.fail(
            "Node.js is needed to check the core against another language: install Node 18 or "
            "newer, or set LAKESYNC_WITHOUT_NODE to the reason why it cannot be had"
        )
    done = subprocess.run(
        [node, str(SCRIPTS / script)],
        input=json.dumps(cases),
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
