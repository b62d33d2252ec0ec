"""`up` and `down` with a small application: safe to repeat, and after a crash."""

from __future__ import annotations

import base64
import gzip
import os
import signal
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.support.waiting import DEPLOYED_S, PATIENCE_S
from tools.local_stack.aws_emulator import find_emulator
from tools.local_stack.errors import LocalStackError
from tools.local_stack.processes import is_running, write_record
from tools.local_stack.sources import build_outputs, declared_parameters, fingerprint
from tools.local_stack.stack import Stack, down, socket_address, status, up

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TEMPLATE = """
Transform: AWS::Serverless-2016-10-31
Parameters:
  PythonRuntime:
    Type: String
  Word:
    Type: String
    Default: first
Resources:
  JwtSecret:
    Type: AWS::SecretsManager::Secret
    Properties:
      GenerateSecretString: {SecretStringTemplate: '{}', GenerateStringKey: current}
  Api:
    Type: AWS::Serverless::HttpApi
  Hello:
    Type: AWS::Serverless::Function
    Properties:
      CodeUri: functions/hello
      Handler: app.handler
      Runtime: !Ref PythonRuntime
      Environment: {Variables: {WORD: !Ref Word}}
      Events:
        Get: {Type: HttpApi, Properties: {ApiId: !Ref Api, Path: /hello, Method: GET}}
        Say: {Type: HttpApi, Properties: {ApiId: !Ref Api, Path: /word, Method: GET}}
        Echo: {Type: HttpApi, Properties: {ApiId: !Ref Api, Path: /echo, Method: POST}}
        Reach: {Type: HttpApi, Properties: {ApiId: !Ref Api, Path: /buckets, Method: GET}}
Outputs:
  HttpUrl: {Value: !Sub "https://${Api}.execute-api.${AWS::Region}.amazonaws.com"}
  JwtSecretArn: {Value: !Ref JwtSecret}
"""
FUNCTION = """
import importlib.util
import json
import os

def handler(event, context):
    if event["rawPath"] == "/word":
        return {"statusCode": 200, "body": os.environ["WORD"]}
    if event["rawPath"] == "/echo":
        told = {name: event[name] for name in ("body", "isBase64Encoded")}
        return {"statusCode": 200, "body": json.dumps(told)}
    if event["rawPath"] == "/buckets":
        import boto3
        boto3.client("s3").list_buckets()
    found = [name for name in ("boto3", "pydantic", "yaml") if importlib.util.find_spec(name)]
    return {"statusCode": 200, "body": ",".join(found)}
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("project")
    (root / "functions" / "hello").mkdir(parents=True)
    (root / "template.yaml").write_text(TEMPLATE)
    (root / "functions" / "hello" / "app.py").write_text(FUNCTION)
    (root / "functions" / "hello" / "requirements.txt").write_text("")
    return root


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("stack")
    yield path
    down(path)


@pytest.fixture(scope="module")
def stack(folder: Path, project: Path) -> Stack:
    return up(folder, port=0, stack="small", project=project)


@pytest.mark.emulator
@pytest.mark.timeout(DEPLOYED_S)
class TestStack:
    def test_function_can_import_only_its_package_and_boto3(self, stack: Stack) -> None:
        assert httpx.get(f"{stack.http}/hello", timeout=PATIENCE_S).text == "boto3"

    def test_a_function_may_do_only_what_its_role_allows(self, stack: Stack, folder: Path) -> None:
        answer = httpx.get(f"{stack.http}/buckets", timeout=PATIENCE_S)
        assert answer.status_code == httpx.codes.INTERNAL_SERVER_ERROR
        assert answer.json() == {"message": "Internal Server Error"}
        assert "AccessDenied" in (folder / "logs" / "emulator.log").read_text()

    @pytest.mark.law("W9")
    @pytest.mark.parametrize(
        ("kind", "body", "is_base64"),
        [
            ("application/json", b'{"a": "\xc3\xa9"}', False),
            ("application/json", b'{"a": "\xff"}', True),
            ("application/json", gzip.compress(b"{}", mtime=0), True),
            ("text/plain", b"\x80", True),
            ("application/x-protobuf", b"\x0a\x01a", True),
        ],
    )
    def test_request_body_reaches_the_function_unchanged(
        self, stack: Stack, kind: str, body: bytes, *, is_base64: bool
    ) -> None:
        answer = httpx.post(
            f"{stack.http}/echo", content=body, headers={"content-type": kind}, timeout=PATIENCE_S
        ).json()
        assert answer["isBase64Encoded"] is is_base64
        text = answer["body"]
        assert (base64.b64decode(text) if is_base64 else text.encode()) == body

    def test_second_up_changes_nothing(self, stack: Stack, folder: Path, project: Path) -> None:
        assert up(folder, port=0, stack="small", project=project) == stack
        assert status(folder) == stack

    def test_changed_parameter_is_deployed_without_a_build(
        self, stack: Stack, folder: Path, project: Path
    ) -> None:
        logs = [folder / "logs" / f"sam-{verb}.log" for verb in ("build", "package")]
        made = [log.stat().st_mtime_ns for log in logs]
        assert httpx.get(f"{stack.http}/word", timeout=PATIENCE_S).text == "first"
        with_it = {"Word": "second"}
        assert up(folder, port=0, stack="small", project=project, parameters=with_it) == stack
        assert httpx.get(f"{stack.http}/word", timeout=PATIENCE_S).text == "second"
        assert [log.stat().st_mtime_ns for log in logs] == made

    def test_up_after_a_crash_deploys_again(
        self, stack: Stack, folder: Path, project: Path
    ) -> None:
        emulator = find_emulator(folder)
        assert emulator is not None
        os.killpg(emulator.pid, signal.SIGKILL)
        assert status(folder) is None
        again = up(folder, port=emulator.port, stack="small", project=project)
        assert again.stack == stack.stack
        assert httpx.get(f"{again.http}/hello", timeout=PATIENCE_S).status_code == httpx.codes.OK


def test_down_without_a_stack_returns_false(tmp_path: Path) -> None:
    assert down(tmp_path) is False


def test_record_with_the_pid_of_another_program_is_ignored(tmp_path: Path) -> None:
    write_record(tmp_path / "emulator.json", {"port": 1, "pid": os.getpid(), "region": "x"})
    assert find_emulator(tmp_path) is None
    assert down(tmp_path) is True
    assert is_running(os.getpid(), "python")


def test_source_change_changes_the_fingerprint_and_a_bytecode_change_does_not(
    tmp_path: Path,
) -> None:
    source = tmp_path / "functions" / "push" / "app.py"
    source.parent.mkdir(parents=True)
    source.write_text("a = 1\n")
    before = fingerprint(tmp_path)
    (source.parent / "__pycache__").mkdir()
    (source.parent / "__pycache__" / "app.pyc").write_bytes(b"x")
    assert fingerprint(tmp_path) == before
    source.write_text("a = 2\n")
    assert fingerprint(tmp_path) != before


def test_only_declared_parameters_are_found() -> None:
    assert declared_parameters(TEMPLATE) == {"PythonRuntime", "Word"}
    assert declared_parameters("Resources: {}\n") == set()


def test_job_scripts_are_build_outputs(tmp_path: Path) -> None:
    (tmp_path / "template.yaml").write_text(
        "      ScriptLocation: build/job.py\n      ScriptLocation: s3://bucket/job.py\n"
    )
    assert [path.name for path in build_outputs(tmp_path)] == ["template.yaml", "job.py"]


def test_web_socket_address_is_that_of_the_emulator() -> None:
    named = "wss://ab12.execute-api.us-east-1.amazonaws.com/prod"

    here = socket_address("http://127.0.0.1:4566", named)
    assert here == "ws://127.0.0.1:4566/_aws/execute-api/ab12/prod"
    with pytest.raises(LocalStackError, match="no address of sockets"):
        socket_address("http://127.0.0.1:4566", "https://ab12.example")
