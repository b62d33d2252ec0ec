"""Where a command looks for the gateway, and which of several answers wins."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from lakesync.cli.commands.status import sockets_of
from lakesync.cli.connection import Connection, Given, resolve
from lakesync.cli.faults import UsageFault

if TYPE_CHECKING:
    from pathlib import Path

STACK = {
    "http": "http://127.0.0.1:4566/api",
    "endpoint": "http://127.0.0.1:4566",
    "region": "us-east-1",
    "stack": "lakesync-local",
    "gateway": "demo",
    "jwt_secret": "s" * 40,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder two levels below one where a stack runs."""
    (tmp_path / ".local").mkdir()
    (tmp_path / ".local" / "stack.json").write_text(json.dumps(STACK))
    deep = tmp_path / "a" / "b"
    deep.mkdir(parents=True)
    return deep


def test_a_stack_file_is_found_upwards(folder: Path) -> None:
    connection = resolve(Given(), {}, folder)
    assert (connection.url, connection.gateway) == (STACK["http"], "demo")
    assert (connection.endpoint, connection.region, connection.stack) == (
        STACK["endpoint"],
        "us-east-1",
        "lakesync-local",
    )
    assert connection.emulated


def test_the_environment_wins_over_a_stack_file_and_an_option_over_both(folder: Path) -> None:
    environment = {"LAKESYNC_GATEWAY": "acme"}
    assert resolve(Given(), environment, folder).gateway == "acme"
    assert resolve(Given(gateway="other"), environment, folder).gateway == "other"


@pytest.mark.parametrize(
    ("given", "environment"),
    [
        (Given(url="https://elsewhere", gateway="g"), {}),
        (Given(), {"LAKESYNC_URL": "https://elsewhere", "LAKESYNC_GATEWAY": "g"}),
        (Given(stack="production", gateway="g"), {}),
    ],
)
def test_the_secret_of_a_stack_that_was_only_found_never_signs_for_another(
    given: Given, environment: dict[str, str], folder: Path
) -> None:
    connection = resolve(given, environment, folder)
    assert connection.jwt_secret is None
    assert connection.endpoint is None
    assert not connection.emulated


def test_a_stack_file_that_was_asked_for_is_used_with_another_url(folder: Path) -> None:
    path = folder.parent.parent / ".local" / "stack.json"
    connection = resolve(Given(url="http://tunnel", stack_file=path), {}, folder)
    assert (connection.url, connection.jwt_secret) == ("http://tunnel", STACK["jwt_secret"])


def test_aws_variables_are_the_standard_ones(tmp_path: Path) -> None:
    environment = {
        "LAKESYNC_STACK": "prod",
        "LAKESYNC_GATEWAY": "g",
        "AWS_ENDPOINT_URL": "http://localhost:1",
        "AWS_REGION": "eu-west-1",
    }
    connection = resolve(Given(), environment, tmp_path)
    assert (connection.endpoint, connection.region) == ("http://localhost:1", "eu-west-1")
    assert not connection.emulated


def test_without_any_hint_the_answer_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(UsageFault, match=r"pass --url and --gateway .* or run `make up`"):
        resolve(Given(), {}, tmp_path)


def test_a_url_without_a_gateway_asks_for_it(tmp_path: Path) -> None:
    with pytest.raises(UsageFault, match="name the gateway: --gateway"):
        resolve(Given(url="https://x"), {}, tmp_path)


def test_what_concerns_a_whole_stack_needs_no_gateway(tmp_path: Path) -> None:
    connection = resolve(Given(stack="prod"), {}, tmp_path, needs_gateway=False)
    assert (connection.stack, connection.gateway) == ("prod", "")
    with pytest.raises(UsageFault):
        resolve(Given(stack="prod"), {}, tmp_path)


def test_a_stack_file_that_is_not_there_or_damaged_says_so(tmp_path: Path) -> None:
    path = tmp_path / "stack.json"
    with pytest.raises(UsageFault, match=r"there is no stack file .*: start a stack"):
        resolve(Given(stack_file=path), {}, tmp_path)
    path.write_text("{")
    with pytest.raises(UsageFault, match="is damaged"):
        resolve(Given(stack_file=path), {}, tmp_path)
    path.write_text("[]")
    with pytest.raises(UsageFault, match="is not a JSON object"):
        resolve(Given(stack_file=path), {}, tmp_path)


def test_secrets_are_not_in_a_connection_s_text(folder: Path) -> None:
    text = repr(resolve(Given(token="very.secret.token"), {}, folder))
    assert STACK["jwt_secret"] not in text
    assert "very.secret.token" not in text
    assert "very.secret.token" not in repr(Given(token="very.secret.token"))


def test_sockets_are_where_a_stack_file_has_them_else_where_the_stack_says(tmp_path: Path) -> None:
    file = tmp_path / "stack.json"
    file.write_text('{"gateway": "demo", "http": "http://x", "sockets": "ws://here"}')
    outputs = SimpleNamespace(outputs={"SocketUrl": "wss://aws"})
    found = resolve(Given(stack_file=file), {}, tmp_path)
    elsewhere = resolve(Given(url="http://y", gateway="g"), {}, tmp_path)

    def of(connection: Connection, aws: object) -> str:
        session: Any = SimpleNamespace(connection=connection, aws=aws)
        return sockets_of(session)

    assert of(found, outputs) == "ws://here"
    assert of(elsewhere, outputs) == "wss://aws"
    assert of(elsewhere, SimpleNamespace(outputs={})) == ""
