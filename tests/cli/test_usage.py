"""Wrong usage: a program that asks for JSON is answered in JSON."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pytest

from lakesync.cli import __main__ as command_line

if TYPE_CHECKING:
    from pathlib import Path


def ended(*words: str, patch: pytest.MonkeyPatch) -> object:
    """Return the exit code of the command line with these words."""
    patch.setattr(sys, "argv", ["lakesync", *words])
    with pytest.raises(SystemExit) as ends:
        command_line.main()
    return ends.value.code


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("push", "--bogus", "--json"), "No such option: --bogus; see lakesync push --help"),
        (
            ("flows", "backfill", "--json"),
            "Missing argument 'name'; see lakesync flows backfill --help",
        ),
        (("bogus", "--json"), "No such command 'bogus'; see lakesync --help"),
    ],
)
def test_wrong_usage_is_json_with_the_json_option(
    words: tuple[str, ...],
    sentence: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert ended(*words, patch=monkeypatch) == 2

    printed = capsys.readouterr()
    assert json.loads(printed.err) == {"error": sentence, "code": "USAGE"}
    assert printed.out == ""


def test_wrong_usage_prints_the_usage_text_without_the_json_option(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended("push", "--bogus", patch=monkeypatch) == 2
    assert "Usage: lakesync push" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [("push", "--help", "--json"), ("connectors", "new", "x", "--json")]
)
def test_a_successful_command_exits_with_0(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)

    assert ended(*words, patch=monkeypatch) == 0


def test_a_failing_command_keeps_its_exit_code_and_json_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    unreachable = ("--url", "http://127.0.0.1:9", "--gateway", "g", "--token", "a.b.c")

    assert ended("schema", "list", *unreachable, "--json", patch=monkeypatch) == 3
    assert json.loads(capsys.readouterr().err)["code"] == "UNREACHABLE"
