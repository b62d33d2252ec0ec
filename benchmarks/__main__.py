"""Run the benchmarks, print them as a table, and write ``benchmarks/results.json``.

Each module's figures are written as it ends: a run that is interrupted keeps what it measured, and
a later module finds the figures of those before it. A module that fails hides no other's figures.
A figure that cannot be measured here, or does not reach its target, is in the table all the same.
``--quick`` only shows that modules run: it measures next to nothing and writes nothing. ``--stale``
names the figures whose sources have changed since they were measured (`benchmarks.sources`), and
``--drop-stale`` removes these: no figure is better than one of other code.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from contextlib import ExitStack, contextmanager, nullcontext
from importlib.metadata import PackageNotFoundError, version
from itertools import groupby
from typing import TYPE_CHECKING, Final

from benchmarks.children import (
    QUICK_SECONDS_MAX,
    SECONDS_MAX,
    Unmeasured,
    ending_on_sigterm,
    run_module,
)
from benchmarks.sources import RESULTS, ROOT, advice, current, digest_of, recorded, stale
from benchmarks.stack import running_stack

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benchmarks.entries import Entry

SPARK: Final = ("spark_merge", "lake_merge", "lake_order", "small_merges")
STACK: Final = ("stack", "live", "capture_lag")
MODULES: Final = (
    "gateway", "rules", "sparse", "buffer", "client", "watch", "broadcast",
    "browser", "checkpoints", "simulation", *STACK, "imports", *SPARK, "small_batches", "databases",
    "capture", "connectors", "flows", "scale", "shared_tables", "template", "cost",
)  # fmt: skip
_PACKAGES: Final = ("lakesync", "protobuf", "pyarrow", "fastapi", "pyspark", "pyiceberg", "duckdb")


def main() -> int:
    """Measure what was asked for; exit code 1 if a figure misses its target."""
    options = _options()
    only: list[str] = options.only
    if options.drop_stale:
        _write(kept := current(recorded(), MODULES))
        print(f"{len(kept)} figures are of the sources that are here, and stay")
        return 0
    if options.stale:
        return _show_stale()
    if options.quick:
        return _quick(only or [name for name in MODULES if name not in (*SPARK, *STACK)])
    entries: list[Entry] = []
    chosen = _chosen(only)
    try:
        for of_stack, modules in groupby(enumerate(chosen, 1), lambda each: each[1] in STACK):
            with _one_stack() if of_stack else nullcontext():
                for number, module in modules:
                    print(f"[{number}/{len(chosen)}] {module} …", file=sys.stderr, flush=True)
                    entries += (measured := _measured(module))
                    _write(merged(recorded(), module, measured))
    finally:  # if it is interrupted, too
        _show(entries)
        print(f"\nwritten to {RESULTS.relative_to(ROOT)}")
    return 0 if all(entry["holds"] for entry in entries) else 1


@contextmanager
def _one_stack() -> Iterator[None]:
    """Let one stack serve all modules that need one; if none starts, each of them says so."""
    with ExitStack() as running:
        try:
            running.enter_context(running_stack())
        except Exception as exc:  # noqa: BLE001 - it must not hide the others' figures
            print(f"no stack: {exc}", file=sys.stderr, flush=True)
        yield


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--only",
        action="extend",
        nargs="+",
        default=[],
        metavar="NAME",
        help=f"a module ({', '.join(MODULES)}); may be repeated",
    )
    parser.add_argument("--quick", action="store_true", help="show that modules run; no figures")
    parser.add_argument("--stale", action="store_true", help="name figures to be measured again")
    parser.add_argument("--drop-stale", action="store_true", help="remove them from the results")
    return parser.parse_args()


def _write(entries: Sequence[Entry]) -> None:
    written = RESULTS.with_suffix(".new")
    written.write_text(json.dumps(entries, indent=1, ensure_ascii=False) + "\n", "utf-8")
    written.replace(RESULTS)  # whole or not at all


def _show_stale() -> int:
    changed = stale(recorded(), MODULES)
    print(advice(changed) if changed else "every figure is of the sources that are here")
    return 1 if changed else 0


def _quick(names: Sequence[str]) -> int:
    """Run modules small, and say which do not run."""
    faults = 0
    for name in names:
        begun = time.monotonic()
        try:
            seconds_max = SECONDS_MAX if name in SPARK else QUICK_SECONDS_MAX
            entries = run_module(name, quick=True, seconds_max=seconds_max)
        except Unmeasured as exc:
            faults += 1
            print(f"{name}: FAILED: {exc}", file=sys.stderr, flush=True)
        else:
            seconds = time.monotonic() - begun
            figures = ", ".join(entry["name"] for entry in entries)
            print(f"{name}: runs ({seconds:.1f} s; {figures})", flush=True)
    return 1 if faults else 0


def _chosen(only: Sequence[str]) -> list[str]:
    """Return the modules to run, those first whose figures others take."""
    if unknown := [name for name in only if name not in MODULES]:
        raise SystemExit(f"no module is called {', '.join(unknown)}")
    return [name for name in MODULES if name in only or not only]


def _measured(name: str) -> list[Entry]:
    started = time.monotonic()
    sources = digest_of(name)
    try:
        entries = run_module(name, quick=False, seconds_max=SECONDS_MAX)
    except Unmeasured as exc:  # one benchmark must not hide the others' figures
        entries = [_failed(name, f"could not be measured: {exc}"[:300])]
    seconds = round(time.monotonic() - started, 1)
    print(f"  {seconds:.0f} s", file=sys.stderr, flush=True)
    return [
        {
            **entry, "module": name, "module_seconds": seconds, "sources": sources,
            "machine": machine(),
        }
        for entry in entries
    ]  # fmt: skip


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


def merged(before: list[Entry], module: str, measured: list[Entry]) -> list[Entry]:
    """Return all figures on record, with those of a module in place of its older ones.

    A module that failed says so beside the older ones: they are of the sources they name.
    """
    failed = all(entry["name"] == module for entry in measured)
    kept = [
        entry
        for entry in before
        if entry["module"] != module or (failed and entry["name"] != module)
    ]
    order = {name: place for place, name in enumerate(MODULES)}
    return sorted(kept + measured, key=lambda entry: order.get(entry["module"], len(order)))


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
    with ending_on_sigterm():
        raise SystemExit(main())
