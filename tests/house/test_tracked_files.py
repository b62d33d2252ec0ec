"""What is in the repository works on another machine."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.repository import ROOT, name_of, tracked

if TYPE_CHECKING:
    from collections.abc import Iterator

TEXT_BYTES_MAX = 2_000_000


def texts() -> Iterator[tuple[str, str]]:
    for path in tracked():
        body = path.read_bytes()
        if b"\0" not in body and len(body) <= TEXT_BYTES_MAX:
            yield name_of(path), body.decode("utf-8")


HOMES = re.compile(r"(?<![\w.])(/home/[a-z]|/Users/[A-Za-z]|/root/|[A-Z]:\\Users\\)")


def test_tracked_files_mention_no_folder_of_one_machine() -> None:
    here = {str(ROOT), str(Path.home())} - {"/"}
    faults = [
        f"{name}:{number}: {line.strip()}"
        for name, text in texts()
        for number, line in enumerate(text.splitlines(), 1)
        if name != name_of(Path(__file__))
        and (HOMES.search(line) or any(f"{folder}/" in line for folder in here))
    ]

    assert faults == []


PRIVATE = re.compile(r"--(extra-)?index-url|--trusted-host|--find-links|PIP_INDEX_URL=")
PUBLIC_HOSTS = {"pypi.org", "files.pythonhosted.org", "repo1.maven.org", "repo.maven.apache.org"}


def test_lock_files_name_no_private_package_registry() -> None:
    """Lock files hold names, versions and hashes; the registry is the machine's affair."""
    faults = []
    for name, text in texts():
        if not name.startswith(("requirements/", "layers/", "functions/", ".ci/")):
            continue
        if name.endswith((".lock", ".in", "requirements.txt", "run")):
            hosts = set(re.findall(r"https?://([^/\s:\"']+)", text))
            faults += [f"{name}: {host}" for host in sorted(hosts - PUBLIC_HOSTS)]
            faults += [f"{name}: {match[0]}" for match in PRIVATE.finditer(text)]

    assert faults == []
