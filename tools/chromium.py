"""The Chromium that the tests and measurements of the JavaScript client drive.

Standard library only: the bootstrap asks here too.
"""

from __future__ import annotations

import os
import shutil
import subprocess

from tools.local_stack.errors import LocalStackError
from tools.uv import say

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
WITHOUT = "LAKESYNC_WITHOUT_CHROMIUM"
"""Holds the reason why no Chromium can be had; tests in a browser are left out with it."""

MISSING = (
    "install Chromium (Debian and Ubuntu: `apt-get install chromium`) or Google Chrome, or set"
    f" CHROMIUM to the path of one, or {WITHOUT} to the reason why it cannot be had: then the tests"
    " in a browser are left out"
)


def find_chromium() -> str | None:
    """The path of this machine's Chromium: that of ``CHROMIUM`` in the environment comes first."""
    named = os.environ.get("CHROMIUM")
    if named:
        return shutil.which(named)
    return next(filter(None, map(shutil.which, NAMES)), None)


def ensure_chromium() -> None:
    """Install Chromium if the machine has none, where that takes no password.

    Raises:
        LocalStackError: it is missing, and cannot be installed from here.
    """
    if os.environ.get(WITHOUT) or find_chromium():
        return
    if os.environ.get("CHROMIUM") or os.geteuid() != 0 or not shutil.which("apt-get"):
        raise LocalStackError(f"there is no Chromium: {MISSING}.")
    say("chromium: installing the system's …")
    quiet = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    for command in (
        ["apt-get", "-qq", "update"],
        ["apt-get", "-qq", "install", "-y", "--no-install-recommends", "chromium"],
    ):
        done = subprocess.run(command, env=quiet, capture_output=True, text=True, check=False)
        if done.returncode:
            print((done.stderr or done.stdout).strip())
            raise LocalStackError(f"`{' '.join(command)}` failed: {MISSING}.")
    if not find_chromium():
        raise LocalStackError(f"apt-get's package has no Chromium for this machine: {MISSING}.")
