"""A figure is stale once the code that it measures has changed, and by nothing else."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from benchmarks import __main__ as command
from benchmarks import sources
from benchmarks.sources import advice, code_of, current, digest_of, measures, recorded, stale

if TYPE_CHECKING:
    from pathlib import Path

SOURCE = '''"""What it is for."""

import os  # noqa


# A comment.
def f(text: str) -> str:
    """Return it."""
    return f"{text} # {os.sep}"


LIMIT = 5
"""Of what."""
QUERY = """
    SELECT 1 -- # é
"""
'''


def test_recorded_figures_match_the_current_sources() -> None:
    """If this fails, measure again what it names, or remove it: the message says how."""
    changed = [one for one in stale(recorded(), command.MODULES) if one.figures]
    assert not changed, advice(changed)


def test_every_module_has_recorded_figures() -> None:
    """If this fails, measure what it names: an empty file says nothing of the code."""
    unmeasured = [one for one in stale(recorded(), command.MODULES) if not one.figures]
    assert not unmeasured, advice(unmeasured)


def test_every_figure_has_a_module() -> None:
    assert {entry["module"] for entry in recorded()} <= set(command.MODULES)


@pytest.mark.parametrize("module", command.MODULES)
def test_every_module_declares_the_sources_that_it_measures(module: str) -> None:
    assert measures(module)
    assert digest_of(module) == digest_of(module)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("# A comment.", "# Another comment, and é."),
        ("# noqa", "# noqa: F401"),
        ('"""Return it."""', '"""Return\n\n    the text.\n    """'),
        ('"""Of what."""', '"""Of everything."""'),
        ('"""What it is for."""', ""),
        ("import os", "\n\nimport os"),
    ],
)
def test_changed_comments_and_docstrings_keep_the_digest(old: str, new: str) -> None:
    assert old in SOURCE
    assert code_of(SOURCE.replace(old, new)) == code_of(SOURCE)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("LIMIT = 5", "LIMIT = 6"),
        ("SELECT 1", "SELECT 2"),
        ("{text} # {", "{text} - {"),
        ("    return", "    del os\n    return"),
        ("-- # é", "-- é"),
    ],
)
def test_changed_code_changes_the_digest(old: str, new: str) -> None:
    assert old in SOURCE
    assert code_of(SOURCE.replace(old, new)) != code_of(SOURCE)


def test_normalised_source_is_the_same_in_every_python_version() -> None:
    """Each line as it stands: no release's own form of it is in a digest."""
    assert code_of(SOURCE) == (
        "import os\n"
        "def f(text: str) -> str:\n"
        '    return f"{text} # {os.sep}"\n'
        "LIMIT = 5\n"
        'QUERY = """\n'
        "    SELECT 1 -- # é\n"
        '"""\n'
    )


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in {
        "benchmarks/one.py": 'MEASURES = ("product",)\nfrom benchmarks import helper\n',
        "benchmarks/helper.py": "from tests.made import rows\n",
        "benchmarks/other.py": 'MEASURES = ("product/a.py",)\n',
        "tests/made.py": "rows = 1\n",
        "product/a.py": "x = 1\n",
        "product/sub/b.py": "y = 1\n",
        "product/note.md": "no code\n",
    }.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    monkeypatch.setattr(sources, "ROOT", tmp_path)
    monkeypatch.setattr(sources, "FOLDER", tmp_path / "benchmarks")
    return tmp_path


def forget() -> None:
    for read in (sources._tree, sources._digest, sources._helpers):
        read.cache_clear()


def test_module_may_reuse_the_measured_sources_of_another(repository: Path) -> None:
    (repository / "benchmarks/third.py").write_text("MEASURES = one.MEASURES\n")
    assert measures("third") == measures("one") == ("product",)


@pytest.mark.parametrize(
    ("changed", "stale_modules"),
    [
        ("benchmarks/one.py", ["one"]),
        ("benchmarks/helper.py", ["one"]),
        ("tests/made.py", ["one"]),
        ("product/a.py", ["one", "other"]),
        ("product/sub/b.py", ["one"]),
        ("product/note.md", []),
    ],
)
def test_source_change_makes_exactly_the_dependent_figures_stale(
    repository: Path, changed: str, stale_modules: list[str]
) -> None:
    modules = ["one", "other"]
    entries = [
        {"name": f"{name}_s", "module": name, "sources": digest_of(name), "module_seconds": 4.0,
         "value": 1.5}
        for name in modules
    ]  # fmt: skip
    assert stale(entries, modules) == []
    with (repository / changed).open("a") as file:
        file.write("z = 2\n")
    forget()
    now_stale = stale(entries, modules)
    left = current(entries, modules)
    forget()
    assert [one.module for one in now_stale] == stale_modules
    assert all(name in advice(now_stale) for name in stale_modules)
    assert [entry["module"] for entry in left] == [m for m in modules if m not in stale_modules]


def test_module_without_figures_is_stale(repository: Path) -> None:
    failed = {"name": "one", "module": "one", "sources": digest_of("one"), "value": None}
    for entries in ([], [failed]):
        [one] = stale(entries, ["one"])
        assert one.figures == ()
        assert advice([one]).endswith('run: make bench ONLY="one"')
    shutil.rmtree(repository / "product")
    forget()
    with pytest.raises(FileNotFoundError, match="product"):
        digest_of("one")
    forget()
