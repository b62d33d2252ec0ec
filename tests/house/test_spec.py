"""The specification and the tests hold each other: no law without proof, no proof without law."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.support import pages
from tests.support.repository import ROOT, modules, name_of, product_modules
from tests.support.some import some

if TYPE_CHECKING:
    from pathlib import Path

PAGES = pages.spec_pages()
by_name = pytest.mark.parametrize("page", PAGES, ids=name_of)


def stated() -> list[str]:
    return [law for page in PAGES for law in pages.stated_laws(page)]


def test_law_numbers_are_unique() -> None:
    assert [law for law, count in Counter(stated()).items() if count > 1] == []


@by_name
def test_the_laws_of_a_page_are_numbered_in_order(page: Path) -> None:
    laws = pages.stated_laws(page)

    assert laws == sorted(laws, key=pages.law_number)


def test_every_law_is_named_by_a_test() -> None:
    assert sorted(set(stated()) - set(pages.proofs())) == []


def test_every_law_named_by_a_test_is_in_the_specification() -> None:
    assert sorted(set(pages.proofs()) - set(stated())) == []


def test_every_law_mark_is_read() -> None:
    """On a function, a class or a method, or alone as the `pytestmark` of a module."""
    test_files = [module for module in modules("tests/") if "tests/support/" not in module.name]
    named = {
        module.name: len(re.findall(r"@pytest\.mark\.law\((?:\s*\"\w+\",?)+", module.text))
        for module in test_files
    }
    read = {module.name: len(pages.own_marks_in(module)) for module in test_files}

    assert {name: count for name, count in named.items() if read[name] != count} == {}


@by_name
def test_generated_parts_of_specification_pages_are_current(page: Path) -> None:
    assert page.read_text("utf-8") == pages.renewed(page), f"run `{pages.COMMAND}`"


@by_name
def test_every_page_of_laws_has_the_required_sections(page: Path) -> None:
    titles = re.findall(r"^## (.*)$", page.read_text("utf-8"), re.MULTILINE)

    if pages.stated_laws(page):
        assert {"Definitions", "Laws", "Proved by", "Not promised"} <= set(titles)


CITED = re.compile(
    r"[Ll]aws? ((?:[A-Z]+\d+(?:,|-|\s+and|\s+to)?\s*)+)[:,]\s+``(docs/spec/[a-z_]+\.md)``"
)
RANGE = re.compile(r"([A-Z]+)(\d+)(?:(?:-|\s+to\s+)[A-Z]+(\d+))?")
"""Laws of a citation: one, or from one to another."""


def test_every_law_cited_in_code_is_on_the_cited_page() -> None:
    missing = []
    cited = [
        (each.name, *found) for each in product_modules() for found in CITED.findall(each.text)
    ]
    for name, laws, page in some(cited):
        path = ROOT / page
        stated = pages.stated_laws(path) if path.exists() else []
        wanted = {
            f"{letters}{number}"
            for letters, first, last in some(RANGE.findall(laws))
            for number in range(int(first), int(last or first) + 1)
        }
        missing += [f"{name}: {page} has no {law}" for law in wanted - set(stated)]

    assert sorted(missing) == []


def test_every_docs_page_cited_in_code_exists() -> None:
    named = {
        (module.name, page)
        for module in product_modules()
        for page in re.findall(r"docs/[\w/]+\.md", module.text)
    }

    assert sorted(pair for pair in named if not (ROOT / pair[1]).exists()) == []


def test_every_limit_has_a_reason_and_a_unit() -> None:
    assert [limit.name for limit in pages.limits() if not limit.reason] == []
    assert [limit.name for limit in pages.limits() if not limit.unit] == []
