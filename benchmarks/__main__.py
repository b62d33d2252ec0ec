"""Run the benchmarks, print them as a table, and write ``benchmarks/results.json``.

A figure that cannot be measured here, or does not reach its target, is in the table all the same.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import platform
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.entries import Entry

MODULES: Final = (
    "gateway", "rules", "sparse", "buffer", "imports", "client", "watch", "broadcast",
    "checkpoints", "simulation", "stack", "live", "spark_merge", "lake_merge", "lake_order",
    "small_merges", "small_batches", "databases", "capture", "capture_lag", "connectors", "flows",
    "scale",
)  # fmt: skip
APART: Final = frozenset({"scale"})
"""What is measured only when it is named: ``make scale``."""
RESULTS: Final = Path(__file__).with_name("results.json")
_PACKAGES: Final = ("lakesync", "protobuf", "pyarrow", "fastapi", "pyspark", "pyiceberg", "duckdb")


def main() -> int:
    """Measure what was asked for; exit code 1 if a figure misses its target."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--only",
        action="append",
        metavar="NAME",
        help=f"a module ({', '.join(MODULES)}) or a figure; may be repeated",
    )
    only = parser.parse_args().only or []
    entries = [entry for module in _chosen(only) for entry in _measured(module)]
    if figures := set(only) - set(MODULES):
        entries = [entry for entry in entries if entry["name"] in figures or _is_of(entry, only)]
    _show(entries)
    RESULTS.write_text(json.dumps(_merged(entries), indent=1, ensure_ascii=False) + "\n", "utf-8")
    print(f"\nwritten to {RESULTS.relative_to(Path.cwd())}")
    return 0 if all(entry["holds"] for entry in entries) else 1


def _chosen(only: Sequence[str]) -> list[str]:
    """Return the modules to run: those named, or all if a figure is named."""
    there = [name for name in MODULES if importlib.util.find_spec(f"benchmarks.{name}")]
    named = [name for name in there if name in only]
    of_scale = [figure for figure in only if figure.startswith("scale_")]
    if named and len(named) == len(only):
        return named
    return [name for name in there if name not in APART or of_scale]


def _is_of(entry: Entry, only: Sequence[str]) -> bool:
    return entry.get("module") in only


def _measured(name: str) -> list[Entry]:
    print(f"measuring {name} …", file=sys.stderr, flush=True)
    started = time.monotonic()
    try:
        entries: list[Entry] = importlib.import_module(f"benchmarks.{name}").run()
    except Exception as exc:  # noqa: BLE001 - one benchmark must not hide the others' figures
        reason = f"could not be measured: {type(exc).__name__}: {exc}"
        entries = [_failed(name, reason[:300])]
    seconds = round(time.monotonic() - started, 1)
    return [
        {**entry, "module": name, "module_seconds": seconds, "machine": machine()}
        for entry in entries
    ]


def _failed(name: str, reason: str) -> Entry:
    return {
        "name": name, "value": None, "unit": "", "target": None, "holds": False, "detail": reason,
    }  # fmt: skip


def machine() -> dict[str, object]:
    """Return the cores and versions that a figure was measured on."""
    versions = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return {
        "cores": os.cpu_count(),
        "processor": platform.machine(),
        "system": f"{platform.system()} {platform.release()}",
        "versions": versions,
    }


def _merged(entries: list[Entry]) -> list[Entry]:
    """Return all figures on record, with those just measured in place of older ones."""
    before: list[Entry] = json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else []
    names = {entry["name"] for entry in entries}
    modules = {entry["module"] for entry in entries}
    failed = {module for module in modules if module in names}
    kept = [
        entry
        for entry in before
        if entry["name"] not in names | modules or entry["module"] in failed
    ]
    order = {name: place for place, name in enumerate(MODULES)}
    return sorted(kept + entries, key=lambda entry: order.get(entry.get("module", ""), 99))


def _show(entries: list[Entry]) -> None:
    try:
        from rich.console import Console  # noqa: PLC0415 - plain text serves where it is missing
        from rich.table import Table  # noqa: PLC0415
    except ImportError:
        for entry in entries:
            print(*_cells(entry), entry["detail"], sep="  ")
        return
    table = Table("figure", "value", "target", "holds", "what was measured", title="LakeSync")
    for entry in entries:
        colour = "green" if entry["holds"] else "red"
        name, value, target, holds = _cells(entry)
        table.add_row(name, value, target, f"[{colour}]{holds}[/]", entry["detail"])
    Console().print(table)


def _cells(entry: Entry) -> tuple[str, str, str, str]:
    value, target, unit = entry["value"], entry["target"], entry["unit"]
    shown = "-" if value is None else f"{value:,.10g} {unit}"
    return (
        entry["name"],
        shown,
        "-" if target is None else f"{target:,.10g}",
        ("yes" if entry["holds"] else "no"),
    )


if __name__ == "__main__":
    raise SystemExit(main())
