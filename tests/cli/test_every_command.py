"""What is true of every command: one fault has one exit code, and a name that is none is an error.

``docs/operations.md`` has the table.
"""

from __future__ import annotations

import json
import shlex
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import TYPE_CHECKING

import boto3
import pytest

from lakesync.analysis import connection
from lakesync.analysis.connection import Aws
from lakesync.cli.nouns import ACTIONS, CONNECTORS, DESTINATIONS, FLOWS
from lakesync.ports import Revocation
from tests.support.command_lines import LINES, Line, commands, reaching, run, write_files
from tests.support.local_gateway import GATEWAY
from tests.support.some import some

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from tests.support.local_gateway import LocalGateway

REPORTS = {"doctor", "smoke"}
"""Commands that report what is wrong, each fault as a line: their exit code is their own."""
NOWHERE = ("--url", "http://127.0.0.1:9", "--gateway", "nope", "--token", "a.b.c")


@pytest.fixture
def folder(empty_folder: Path) -> Path:
    """A folder with the files that the commands read."""
    write_files(empty_folder)
    return empty_folder


def end_of(name: str, line: Line, *more: str, gateway: str = "nope") -> tuple[int, str]:
    """Return a command's exit code, and the code of its fault."""
    words = shlex.split(line.words.replace("GATEWAY", gateway))
    done = run(*name.split(), *words, *more, "--json")
    last = (done.stderr.strip().splitlines() or [""])[-1]
    code = json.loads(last).get("code", "") if last.startswith("{") else last
    return done.exit_code, code


def ends(lines: Mapping[str, Line], *more: str, gateway: str = "nope") -> dict[int, set[str]]:
    """Return by exit code the commands that end with it."""
    codes: dict[int, set[str]] = {}
    for name, line in lines.items():
        codes.setdefault(end_of(name, line, *more, gateway=gateway)[0], set()).add(name)
    return codes


def test_every_command_has_a_sample_command_line() -> None:
    assert sorted(commands()) == sorted(LINES)


@pytest.mark.parametrize("name", ["", *commands()])
def test_every_command_has_help_with_an_example(name: str) -> None:
    done = run(*name.split(), "--help")

    assert done.exit_code == 0
    assert f"lakesync {name}".strip() in done.output
    assert not name or "Example:" in done.output


@pytest.mark.usefixtures("folder")
def test_a_command_without_gateway_or_stack_is_wrong_usage() -> None:
    somewhere = {name: line for name, line in LINES.items() if line.reaches}

    assert ends(somewhere) == {connection.USAGE: set(somewhere)}


@pytest.mark.usefixtures("folder")
def test_commands_exit_with_the_retry_code_when_the_gateway_is_unreachable() -> None:
    asking = {name: line for name, line in reaching("gateway").items() if name not in REPORTS}

    assert ends(asking, *NOWHERE) == {connection.LATER: set(asking)}


@pytest.mark.usefixtures("folder")
def test_commands_with_a_refused_token_exit_with_the_no_access_code(gateway: LocalGateway) -> None:
    public = {"connectors types"}
    asking = {
        name: line for name, line in reaching("gateway").items() if name not in REPORTS | public
    }
    gateway.access.revoke(GATEWAY, Revocation("user", "gone", 1, "admin"))
    tokens = {
        "void": "a.b.c",
        "of another gateway": gateway.token("ann", gateway="other", role="admin"),
        "of a user who is revoked": gateway.token("gone", role="admin"),
    }
    for token in tokens.values():
        words = ("--url", gateway.url, "--gateway", GATEWAY, "--token", token)
        assert ends(asking, *words, gateway=GATEWAY) == {connection.NO_ACCESS: set(asking)}


def test_commands_on_an_unknown_gateway_end_with_not_found_and_create_nothing(
    stack_file: Path, gateway: LocalGateway
) -> None:
    write_files(stack_file.parent.parent)
    asking = {name: line for name, line in reaching("gateway").items() if not line.makes}
    asking = {name: line for name, line in asking.items() if "aws" not in line.reaches}
    for number, (name, line) in enumerate(some(asking.items())):
        nope = f"nope{number}"  # each its own, which the one before did not touch
        exit_code, code = end_of(name, line, "--gateway", nope, gateway=nope)
        assert (name, exit_code, code) == (
            name,
            connection.FAILED,
            "ACTION_EXECUTION_ERROR" if name == "actions run" else "NOT_FOUND",
        )
        assert gateway.buffer.config(nope).version == 0
    words = ("--url", gateway.url, "--gateway", "nope", "--token")
    token = gateway.token("phone", gateway="nope")
    assert end_of("pull", LINES["pull"], *words, token) == (connection.FAILED, "NOT_FOUND")
    operator = gateway.token("olga", gateway="nope", role="operator")
    assert end_of("status", LINES["status"], *words, operator) == (connection.FAILED, "NOT_FOUND")


@pytest.mark.usefixtures("stack_file")
@pytest.mark.parametrize(
    "words",
    [
        ("schema", "put", "--table", "t", "--column", "a:integer"),
        ("schema", "strict", "on"),
        ("rules", "put", "rules.json"),
        ("push", "--table", "t", "--row", "r", "--set", "a=1"),
        ("access", "revoke", "client", "phone"),
    ],
    ids=" ".join,
)
def test_a_gateway_exists_after_its_first_declaration_or_push(
    words: tuple[str, ...], gateway: LocalGateway, empty_folder: Path
) -> None:
    write_files(empty_folder)
    name = "-".join(words[:2]).strip("-")
    if words[0] == "access":  # by a program: the command refuses a name that is none
        gateway.access.revoke(name, Revocation("client", "phone", 1, "admin"))
    else:
        assert run(*words, "--gateway", name).exit_code == 0
    for each in ("schema list", "access list", "connectors list", "flows list", "rules show"):
        assert end_of(each, LINES[each], "--gateway", name)[0] == 0
    assert end_of("clients list", LINES["clients list"], gateway=name)[0] == 0


@pytest.mark.usefixtures("stack_file")
def test_the_gateway_of_a_stack_file_exists_before_its_first_commit() -> None:
    for each in ("status", "schema list", "pull", "access list"):
        assert end_of(each, LINES[each])[0] == 0


VERBS = {
    f"{noun.route} {verb}": noun.one
    for noun in (CONNECTORS, FLOWS, DESTINATIONS, ACTIONS)
    for verb in noun.verbs
} | {
    "destinations replay": "destination",
    "flows backfill": "flow",
    "connectors check": "connector",
}


@pytest.mark.usefixtures("stack_file")
@pytest.mark.parametrize("command", VERBS)
def test_a_verb_on_an_unknown_name_is_refused_in_one_line(command: str) -> None:
    done = run(*command.split(), "nowhere")

    assert done.exit_code == 1
    assert done.stderr.startswith("error: ")
    assert f"there is no {VERBS[command]}" in done.stderr
    assert "nowhere" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert run(*command.split()).exit_code == connection.USAGE, "a name is asked for"


# --- AWS ------------------------------------------------------------------------------------------


class _Outputs(dict[str, str]):
    """Every output that a command may ask for."""

    def __contains__(self, key: object) -> bool:
        return True

    def __missing__(self, key: str) -> str:
        return "https://sqs.local/0/queue" if key.endswith("Url") else "something"


@contextmanager
def refusing(status: int, code: str) -> Iterator[str]:
    """Serve an AWS that refuses everything, in the form that each service has for it."""

    class Handler(BaseHTTPRequestHandler):
        def _serve(self) -> None:
            self.rfile.read(int(self.headers.get("content-length") or 0))
            is_json = "x-amz-target" in self.headers or "/functions/" in self.path
            error = f"<Error><Code>{code}</Code><Message>no</Message></Error>"
            # S3 names a bucket in the path, where the query protocol asks "/".
            xml = error if self.path.strip("/") else f"<ErrorResponse>{error}</ErrorResponse>"
            body = json.dumps({"__type": f"x#{code}", "message": "no"}) if is_json else xml
            self.send_response(status)
            self.send_header("x-amzn-errortype", code)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body.encode())

        do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = _serve  # noqa: N815 - its names

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def on_aws(folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Line]:
    """The commands that use AWS credentials, with a stack whose outputs are known."""
    monkeypatch.setattr(Aws, "outputs", _Outputs(LakeCatalogue="", Stage="prod"))
    monkeypatch.setattr(Aws, "stack_id", "arn:aws:cloudformation:us-east-1:0:stack/s/1")
    monkeypatch.setattr("lakesync.buffer.table_calls.TableCalls.pause", lambda *_: None)
    monkeypatch.setattr("botocore.endpoint.time.sleep", lambda _: None)
    for name, value in {
        "AWS_REGION": "us-east-1",
        "AWS_MAX_ATTEMPTS": "1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": str(folder / "none"),
        "AWS_SHARED_CREDENTIALS_FILE": str(folder / "none"),
        "LAKESYNC_STACK": "s",
        "LAKESYNC_GATEWAY": "nope",
    }.items():
        monkeypatch.setenv(name, value)
    lines = {name: line for name, line in LINES.items() if line.reaches == "aws"}
    return {name: line for name, line in lines.items() if name not in REPORTS}


@pytest.fixture
def one_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models of AWS's services are read once, not for each command."""
    session = boto3.Session(
        aws_access_key_id="AKIDEXAMPLE", aws_secret_access_key="x", region_name="us-east-1"
    )
    monkeypatch.setattr(Aws, "_session", session)


def test_aws_commands_without_credentials_exit_with_the_no_access_code(
    on_aws: dict[str, Line],
) -> None:
    assert ends(on_aws) == {connection.NO_ACCESS: set(on_aws)}


@pytest.mark.usefixtures("one_session")
@pytest.mark.parametrize(
    ("status", "code", "exit_code"),
    [
        (403, "AccessDenied", connection.NO_ACCESS),
        (403, "ExpiredToken", connection.NO_ACCESS),
        (400, "ThrottlingException", connection.LATER),
    ],
)
def test_every_aws_command_exits_with_the_same_code_on_an_aws_error(
    status: int,
    code: str,
    exit_code: int,
    on_aws: dict[str, Line],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with refusing(status, code) as endpoint:
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)

        assert ends(on_aws, gateway="nope") == {exit_code: set(on_aws)}


@pytest.mark.usefixtures("one_session")
def test_aws_commands_exit_with_the_retry_code_when_aws_is_unreachable(
    on_aws: dict[str, Line], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")

    assert ends(on_aws) == {connection.LATER: set(on_aws)}
