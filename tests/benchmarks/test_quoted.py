"""What pages say that something costs is what was measured."""

from __future__ import annotations

import re

import pytest

from benchmarks.sources import figure_on_record
from tests.support.repository import ROOT

QUOTED = [
    ("docs/realtime.md", r"costs \$([\d.]+) a month", "idle_connection_usd_month"),
    ("docs/realtime.md", r"\| LakeSync \| \$([\d.]+) \|", "broadcast_usd_per_m_messages"),
    ("docs/architecture.md", r"([\d.]+) write units a delta\. A cold", "push_wru_per_delta"),
    ("docs/architecture.md", r"a mark, ([\d.]+) write units a delta", "append_wru_per_delta"),
]
"""A page, where it quotes a figure, and which; those that are quoted by name are not here."""


@pytest.mark.parametrize(("page", "quote", "figure"), QUOTED)
def test_figures_quoted_on_pages_equal_measured_figures(page: str, quote: str, figure: str) -> None:
    text = " ".join((ROOT / page).read_text("utf-8").split())
    [quoted] = re.findall(quote, text)
    measured = figure_on_record(figure)
    assert measured is not None, f"{figure} was never measured: make bench"
    unit = 10.0 ** -len(quoted.partition(".")[2])
    assert abs(float(quoted) - measured) < unit, f"{page} says {quoted}, measured is {measured}"
