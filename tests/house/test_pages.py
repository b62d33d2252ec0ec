"""Every page renders: its tables are tables, and its links lead somewhere."""

from __future__ import annotations

import pytest

from tests.support.markdown import anchors, faults
from tests.support.repository import name_of, tracked

FILES = frozenset(map(name_of, tracked()))
PAGES = {name_of(path): path.read_text("utf-8") for path in tracked() if path.suffix == ".md"}


def test_expected_documentation_pages_are_found() -> None:
    assert {"README.md", "CHANGELOG.md", "CONTRIBUTING.md", "docs/compatibility.md"} <= PAGES.keys()


@pytest.mark.parametrize("name", sorted(PAGES))
def test_every_page_renders_and_its_links_resolve(name: str) -> None:
    assert faults(name, PAGES, FILES) == []


TABLE = "| a | b |\n|---|---|\n| 1 | 2 |\n"
GOOD = (
    f"# One `two`, three!\n\n{TABLE}\n> | a |\n> |---|\n> | `x \\| y` |\n\n- in a list\n\n"
    "  | a | b |\n  |---|---|\n  | 1 | 2 |\n\n```\n| no | table |\n[no](link)\n```\n\n"
    "A | B in a sentence, and `| this |`.\n\n## Twice\n\n## Twice\n\n<a id='by-hand'></a>\n\n"
    "[1](#one-two-three) [2](other.md#größe--maß) [3](../top.py#L3-L5) [4](#twice-1) [5](../docs)\n"
    "[6](https://nowhere.example/x#y) [7](#by-hand) ![8](a.png) [9](/top.py) [10][ref] "
    "[11](mailto:a@b.example) \\[no\\](link)\n\n[ref]: other.md\n"
)
OTHERS = {"docs/other.md": "# Größe & Maß\n"}
THERE = frozenset({"docs/page.md", "docs/other.md", "docs/a.png", "top.py"})


def of(text: str) -> list[str]:
    """Return the faults of a page, without its name."""
    found = faults("docs/page.md", OTHERS | {"docs/page.md": text}, THERE)
    return [fault.removeprefix("docs/page.md:") for fault in found]


def test_valid_page_has_no_fault() -> None:
    assert of(GOOD) == []


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (TABLE.replace("| 1 | 2 |", "| 1 |"), "3: a row of 1 cells in a table of 2"),
        (TABLE.replace("1", "`1|2`"), "3: a row of 3 cells in a table of 2"),
        (TABLE + "and so on\n", "4: a row of 1 cells in a table of 2"),
        (TABLE.replace("\n| 1", "\n\n| 1"), "4: a line of a table that is none"),
        (TABLE.replace("|---|---|", "|---|"), "1: a line of a table that is none"),
        (TABLE.replace("|---|---|\n", ""), "1: a line of a table that is none"),
        ("a | b\n--|-- --\n1 | 2\n\na b\n--|--\n", "6: a line of a table that is none"),
        ("> " + TABLE.replace("\n", "\n> ").replace("1 |", ""), "3: a row of 1 cells in a table"),
        ("[x](gone.md)\n", "1: a dead link: gone.md"),
        ("text\n\n[x](../gone/)\n", "3: a dead link: ../gone/"),
        ("[x](/docs/gone.md)\n", "1: a dead link: /docs/gone.md"),
        ("[x][ref]\n\n[ref]: gone.md\n", "1: a dead link: gone.md"),
        ("<a href='gone.md'>x</a>\n", "1: a dead link: gone.md"),
        ("[x](#gone)\n", "1: no such anchor: #gone"),
        ("# Here\n\n[x](#Here)\n", "3: no such anchor: #Here"),
        ("[x](other.md#gone)\n", "1: no such anchor: other.md#gone"),
        ("[x](../top.py#gone)\n", "1: no such anchor: ../top.py#gone"),
        ("![x](gone.png)\n", "1: a dead link: gone.png"),
        ("<img alt='x' src='gone.png'>\n", "1: a dead link: gone.png"),
        ("[x](a page.md)\n", "1: a link that is none: ](a"),
        ("[x][undefined]\n", "1: a link that is none: ][undefined]"),
    ],
)  # fmt: skip
def test_invalid_page_is_reported(text: str, fault: str) -> None:
    assert any(each.startswith(fault) for each in of(text)), of(text)


def test_anchors_follow_the_rules_of_github() -> None:
    text = "# A.B: *c* `d_e` (f)\n\n# A.B: c d_e f\n\nX & Y\n=====\n\n## [Link](x.md)-ed\n"

    assert anchors(text) == {"ab-c-d_e-f", "ab-c-d_e-f-1", "x--y", "link-ed"}
