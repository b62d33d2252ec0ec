"""How large the template is: what CloudFormation counts, what a reader reads, what is asked.

Resources are those after SAM's transform, with the parameters' defaults, each counted whatever its
condition. Kilobytes are those of all template files with their comments. ``run`` gives the figures.
"""

from __future__ import annotations

from typing import Final

from benchmarks.entries import Entry, at_most
from tests.infrastructure.stack import template
from tests.infrastructure.transformed import transformed
from tests.support.repository import ROOT

MEASURES: Final = ("template.yaml",)
TEMPLATES: Final = ("template.yaml",)
RESOURCES_TARGET: Final = 300
KB_TARGET: Final = 140
PARAMETERS_TARGET: Final = 60


def run() -> list[Entry]:
    """Measure, and give one entry for each figure."""
    parameters = len(template()["Parameters"])
    kilobytes = sum((ROOT / name).stat().st_size for name in TEMPLATES) / 1_000
    return [
        at_most("template_resources", len(transformed()["Resources"]), "resources",
                RESOURCES_TARGET, "after SAM's transform, whatever their condition"),
        at_most("template_kb", kilobytes, "KB", KB_TARGET, "with comments, of 1,000 bytes"),
        at_most("template_parameters", parameters, "parameters", PARAMETERS_TARGET,
                "all have defaults"),
    ]  # fmt: skip


if __name__ == "__main__":
    for entry in run():
        print(entry)
