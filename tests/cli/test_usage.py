"""Wrong usage: a program that asks for JSON is answered in JSON."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pytest
from botocore.exceptions import (
    ClientError,
    EndpointConnectionError,
    NoCredentialsError,
    NoRegionError,
    ProfileNotFound,
)

from lakesync.analysis.connection import UsageFault, fault_of
from lakesync.cli import __main__ as command_line
from lakesync.errors import (
    AuthFailed,
    Backpressure,
    CursorExpired,
    Forbidden,
    NotFound,
    Revoked,
    SchemaMismatch,
    Unreachable,
)

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


# --- faults ---------------------------------------------------------------------------------------


def _refused(code: str, message: str) -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": message}}, "DescribeStacks")


@pytest.mark.parametrize(
    ("error", "exit_code"),
    [
        (UsageFault("give a file"), 2),
        (SchemaMismatch("todos.done is boolean; the value is not"), 1),
        (Backpressure("later"), 3),
        (Unreachable("the gateway did not answer"), 3),
        (AuthFailed("the token has expired; get a fresh one"), 4),
        (Forbidden("another token"), 4),
        (NoCredentialsError(), 4),
        (_refused("ExpiredToken", "x"), 4),
        (_refused("AccessDenied", "not authorised"), 4),
        (_refused("ValidationError", "bad name"), 1),
        (EndpointConnectionError(endpoint_url="http://localhost:1"), 3),
        (_refused("ThrottlingException", "Rate exceeded"), 3),
        (Revoked("this user is revoked"), 4),
        (NotFound("there is no gateway nope"), 1),
        (OSError("When reading: AWS Error ACCESS_DENIED during GetObject operation"), 4),
        (OSError("When reading: AWS Error EXPIRED_TOKEN during GetObject operation"), 4),
        (OSError("When reading: AWS Error NETWORK_CONNECTION during GetObject operation"), 3),
        (OSError("When reading: AWS Error NO_SUCH_KEY during GetObject operation"), 1),
        (ProfileNotFound(profile="x"), 4),
        (NoRegionError(), 2),
        (KeyboardInterrupt(), 130),
        (FileNotFoundError(2, "No such file or directory", "deltas.json"), 1),
        (ZeroDivisionError("a bug"), 1),
    ],
)
def test_each_kind_of_failure_has_its_exit_code_and_one_sentence(
    error: BaseException, exit_code: int
) -> None:
    fault = fault_of(error)
    assert fault.exit_code == exit_code
    assert fault.sentence
    assert "\n" not in fault.sentence


def test_the_message_of_a_fault_names_the_field() -> None:
    fault = fault_of(SchemaMismatch("the value is too long", field="deltas[3].title"))
    assert fault.sentence == "the value is too long (deltas[3].title)"
    assert fault.code == "SCHEMA_ERROR"


def test_a_missing_file_is_named() -> None:
    fault = fault_of(FileNotFoundError(2, "No such file or directory", "deltas.json"))
    assert fault.sentence == "deltas.json: No such file or directory"


def test_an_expired_cursor_suggests_since_0() -> None:
    assert fault_of(CursorExpired("the cursor is too old")).sentence.endswith("--since 0")


def test_an_unexpected_error_does_not_show_its_message() -> None:
    assert "sesame" not in fault_of(ValueError("the secret is sesame")).sentence
