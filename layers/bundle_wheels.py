"""Gathers what the Glue jobs install when they start: for each job one zip of wheels.

    python3 layers/bundle_wheels.py --glue 5.1 --into FOLDER

Glue installs such a zip from S3, so a job asks no package index: one in a subnet without a way to
the internet starts too, and every run has the locked bytes. The packages are installed by their
locks, with all hashes checked, and packed into wheels again, since uv downloads none. Format of the
zip: https://docs.aws.amazon.com/glue/latest/dg/aws-glue-programming-python-libraries.html,
appendix A. The same lock gives the same bytes. Standard library only: `sam build` runs this.
"""

from __future__ import annotations

import argparse
import csv
import io
import re
import sys
import tempfile
import zipfile
from email.parser import HeaderParser
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parent))

from build_layer import ROOT, BuildError, install
from bundle_job import entry

if TYPE_CHECKING:
    from collections.abc import Iterable

JOBS = ("checkpoint", "bigquery", "flow")
PYTHONS = {"5.1": "3.11", "6.0": "3.13"}
PROCESSOR = "x86_64"
SUFFIX = ".gluewheels.zip"
"""By this, Glue knows that a zip contains wheels."""
VERSION = "glue-version"
# What an installer adds to a package, and writes anew when the wheel is installed again.
INSTALLERS = {"INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json", "uv_build.json"}


def wheel(packages: Path, info: Path) -> tuple[str, bytes]:
    """Return the file name and the bytes of the wheel that was installed into a folder."""
    headers = HeaderParser().parsestr((info / "WHEEL").read_text("utf-8"))
    name = f"{info.name.removesuffix('.dist-info')}-{tag(headers.get_all('Tag') or [])}.whl"
    with (info / "RECORD").open(newline="", encoding="utf-8") as file:
        rows = sorted(row for row in csv.reader(file) if row and is_of_wheel(row[0]))
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as packed:
        for path in (row[0] for row in rows if row[0] != f"{info.name}/RECORD"):
            packed.writestr(readable(path), (packages / path).read_bytes())
        record = io.StringIO()
        csv.writer(record, lineterminator="\n").writerows(rows)
        packed.writestr(readable(f"{info.name}/RECORD"), record.getvalue())
    return name, target.getvalue()


def is_of_wheel(path: str) -> bool:
    """Return whether a recorded file came with the wheel and lies beside its packages."""
    first, _, _ = path.partition("/")
    last = path.rpartition("/")[2]
    return first not in {"..", "bin", ""} and last not in INSTALLERS and not path.endswith(".pyc")


def tag(tags: Iterable[str]) -> str:
    """Return a wheel's tags as its file name has them: each part once, with dots between."""
    parts = zip(*(each.split("-") for each in tags), strict=True)
    return "-".join(".".join(sorted(set(part))) for part in parts)


def readable(path: str) -> zipfile.ZipInfo:
    """Return the head of a file that whoever installs the wheel may read."""
    made = entry(path)
    made.external_attr = 0o644 << 16
    return made


def archive(lock: Path, python: str) -> bytes:
    """Return the zip of the wheels that a lock names, and of a list that asks for each.

    Raises:
        BuildError: a wheel cannot be had, or is not the locked one.
    """
    target = io.BytesIO()
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(target, "w") as packed:
        packages = Path(folder)
        install(lock, python, PROCESSOR, packages)
        asked = []
        for info in sorted(packages.glob("*.dist-info")):
            name, content = wheel(packages, info)
            made = readable(f"wheels/{name}")
            made.compress_type = zipfile.ZIP_STORED  # it is compressed already
            packed.writestr(made, content)
            asked.append("==".join(re.split("-", name, maxsplit=2)[:2]))
        packed.writestr(readable("wheels/requirements.txt"), "\n".join([*asked, ""]))
    return target.getvalue()


def main(arguments: list[str]) -> int:
    """Write the zips; 1 and a sentence if that cannot be done."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--glue", required=True, choices=sorted(PYTHONS), help="Glue's version")
    parser.add_argument("--into", required=True, type=Path, help="the folder of the zips")
    options = parser.parse_args(arguments)
    options.into.mkdir(parents=True, exist_ok=True)
    try:
        for job in JOBS:
            lock = ROOT / "requirements" / f"job-{job}.lock"
            (options.into / f"{job}{SUFFIX}").write_bytes(archive(lock, PYTHONS[options.glue]))
        # Compared with the stack's when it is deployed: build and deployment may differ.
        (options.into / VERSION).write_text(f"{options.glue}\n")
    except (BuildError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
