"""`NOTICE` names every package that a deployment ships, and the licences that ask for more."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, metadata
from typing import Final

import pytest

from tests.support.repository import ROOT

NOTICE: Final = (ROOT / "NOTICE").read_text()
LISTED: Final = dict(re.findall(r"^  ([a-z0-9-]+) {2,}(\S.*?) {2,}\S", NOTICE, re.MULTILINE))
ASKS_FOR_MORE: Final = re.compile(r"GPL|MPL|Mozilla|GNU")


def shipped() -> set[str]:
    """Return the packages of all layers; Lambda runs Linux."""
    locks = "\n".join(path.read_text() for path in ROOT.glob("requirements/layer-*.lock"))
    pins = re.findall(r"^([a-z0-9.-]+)(?:\[[^]]*\])?==[^\n;]*(.*)$", locks, re.MULTILINE)
    return {name for name, marker in pins if "win32" not in marker and "'nt'" not in marker}


def test_notice_lists_exactly_the_packages_of_the_layers() -> None:
    assert set(LISTED) == shipped()


@pytest.mark.parametrize("name", sorted(LISTED))
def test_notice_names_licences_that_require_more_than_a_notice(name: str) -> None:
    try:
        said = metadata(name)
    except PackageNotFoundError:
        pytest.skip("not in this environment")
    licence = [one for one in said.get_all("Classifier") or () if one.startswith("License")]
    licence += said.get_all("License-Expression") or ()
    asks = bool(ASKS_FOR_MORE.search(" ".join(licence)))
    assert asks == bool(ASKS_FOR_MORE.search(LISTED[name]))


def test_notice_is_included_in_the_library_distribution() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    assert 'license-files = ["LICENSE", "NOTICE"]' in text
    assert re.search(r'\[tool\.hatch\.build\.targets\.sdist\]\ninclude = \[.*"NOTICE".*\]', text)
