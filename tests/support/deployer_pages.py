"""Writes the deployer's policies: ``python -m tests.support.deployer_pages``."""

from __future__ import annotations

import json

from lakesync.cli.doctor.deployer import policies
from tests.support.repository import ROOT

FOLDER = ROOT / "docs" / "deployer"


def main() -> None:
    for number, document in enumerate(policies(), start=1):
        (FOLDER / f"policy-{number}.json").write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
