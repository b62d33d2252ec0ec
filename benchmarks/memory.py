"""How much memory a process took, itself alone."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

_KB_IN_MB: Final = 1024


def peak_mb() -> float:
    """Return the greatest resident size of this process since its program began.

    ``ru_maxrss`` is no measure of that: Linux keeps it when a program is executed, so that a child
    begins with the peak of whoever started it.
    """
    status = Path("/proc/self/status").read_text("ascii", "replace")
    line = re.search(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)
    if line is None:
        raise OSError("peaks are read from VmHWM of /proc/self/status, which this system has not")
    return int(line[1]) / _KB_IN_MB
