"""What the threads of a Java process have used of the processors, by what they do."""

from __future__ import annotations

import os
from pathlib import Path

_KINDS = {
    "Executor task": "tasks",
    "C1 Compiler": "compilers",
    "C2 Compiler": "compilers",
    "Thread-": "driver",
    "GC Thread": "collector",
    "G1 ": "collector",
}


def cpu_s(pid: int) -> dict[str, float]:
    """Return the CPU seconds of a process so far: under ``all``, and those of each kind of thread.

    Threads that ended count in ``all`` only.
    """
    by_kind = dict.fromkeys(_KINDS.values(), 0.0) | {"others": 0.0}
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            name, used_s = (task / "comm").read_text(), _used_s(task / "stat")
        except FileNotFoundError:
            continue  # it ended just now
        kind = next((kind for start, kind in _KINDS.items() if name.startswith(start)), "others")
        by_kind[kind] += used_s
    return {"all": _used_s(Path(f"/proc/{pid}/stat")), **by_kind}


def _used_s(stat: Path) -> float:
    user, system = stat.read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
