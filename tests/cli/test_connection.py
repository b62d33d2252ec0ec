"""Where a command looks for the gateway, and which of several answers wins."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from lakesync.analysis.connection import Aws, Connection, Options, UsageFault, resolve
from lakesync.cli.commands.backlog import sockets_of

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


def test_a_stack_file_is_found_in_a_parent_folder(folder: Path) -> None:
    connection = resolve(Options(), {}, folder)
    assert (connection.url, connection.gateway) == (STACK["http"], "demo")
    assert (connection.endpoint, connection.region, connection.stack) == (
        STACK["endpoint"],
        "us-east-1",
        "lakesync-local",
    )
    assert connection.emulated


def test_options_override_the_environment_which_overrides_a_stack_file(folder: Path) -> None:
    environment = {"LAKESYNC_GATEWAY": "acme"}
    assert resolve(Options(), environment, folder).gateway == "acme"
    assert resolve(Options(gateway="other"), environment, folder).gateway == "other"


@pytest.mark.parametrize(
    ("given", "environment"),
    [
        (Options(url="https://elsewhere", gateway="g"), {}),
        (Options(), {"LAKESYNC_URL": "https://elsewhere", "LAKESYNC_GATEWAY": "g"}),
        (Options(stack="production", gateway="g"), {}),
    ],
)
def test_the_secret_of_a_discovered_stack_file_is_not_used_for_another_stack(
    given: Options, environment: dict[str, str], folder: Path
) -> None:
    connection = resolve(given, environment, folder)
    assert connection.jwt_secret is None
    assert connection.endpoint is None
    assert not connection.emulated


def test_an_explicit_stack_file_is_used_with_another_url(folder: Path) -> None:
    path = folder.parent.parent / ".local" / "stack.json"
    connection = resolve(Options(url="http://tunnel", stack_file=path), {}, folder)
    assert (connection.url, connection.jwt_secret) == ("http://tunnel", STACK["jwt_secret"])


def test_endpoint_and_region_are_read_from_the_standard_aws_variables(tmp_path: Path) -> None:
    environment = {
        "LAKESYNC_STACK": "prod",
        "LAKESYNC_GATEWAY": "g",
        "AWS_ENDPOINT_URL": "http://localhost:1",
        "AWS_REGION": "eu-west-1",
    }
    connection = resolve(Options(), environment, tmp_path)
    assert (connection.endpoint, connection.region) == ("http://localhost:1", "eu-west-1")
    assert not connection.emulated


def test_resolving_without_any_setting_names_the_options(tmp_path: Path) -> None:
    with pytest.raises(UsageFault, match=r"pass --url and --gateway .* or run `make up`"):
        resolve(Options(), {}, tmp_path)


def test_a_url_without_a_gateway_is_wrong_usage(tmp_path: Path) -> None:
    with pytest.raises(UsageFault, match="name the gateway: --gateway"):
        resolve(Options(url="https://x"), {}, tmp_path)


def test_stack_wide_commands_need_no_gateway(tmp_path: Path) -> None:
    connection = resolve(Options(stack="prod"), {}, tmp_path, needs_gateway=False)
    assert (connection.stack, connection.gateway) == ("prod", "")
    with pytest.raises(UsageFault):
        resolve(Options(stack="prod"), {}, tmp_path)


def test_a_missing_or_damaged_stack_file_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "stack.json"
    with pytest.raises(UsageFault, match=r"there is no stack file .*: start a stack"):
        resolve(Options(stack_file=path), {}, tmp_path)
    path.write_text("{")
    with pytest.raises(UsageFault, match="is damaged"):
        resolve(Options(stack_file=path), {}, tmp_path)
    path.write_text("[]")
    with pytest.raises(UsageFault, match="is not a JSON object"):
        resolve(Options(stack_file=path), {}, tmp_path)


def test_the_repr_of_a_connection_contains_no_secret(folder: Path) -> None:
    text = repr(resolve(Options(token="very.secret.token"), {}, folder))
    assert STACK["jwt_secret"] not in text
    assert "very.secret.token" not in text
    assert "very.secret.token" not in repr(Options(token="very.secret.token"))


def test_the_socket_url_is_taken_from_the_stack_file_or_else_the_stack_outputs(
    tmp_path: Path,
) -> None:
    file = tmp_path / "stack.json"
    file.write_text('{"gateway": "demo", "http": "http://x", "sockets": "ws://here"}')
    outputs = SimpleNamespace(outputs={"SocketUrl": "wss://aws"})
    found = resolve(Options(stack_file=file), {}, tmp_path)
    elsewhere = resolve(Options(url="http://y", gateway="g"), {}, tmp_path)

    def of(connection: Connection, aws: object) -> str:
        session: Any = SimpleNamespace(connection=connection, aws=aws)
        return sockets_of(session)

    assert of(found, outputs) == "ws://here"
    assert of(elsewhere, outputs) == "wss://aws"
    assert of(elsewhere, SimpleNamespace(outputs={})) == ""


# --- clients of AWS -------------------------------------------------------------------------------


def test_aws_clients_are_cached_by_service_and_timeout() -> None:
    aws = Aws(Connection(gateway="g", url="", region="us-east-1", emulated=True))
    client, patient = aws.client("lambda"), aws.client("lambda", answer_s_max=600)

    assert aws.client("lambda") is client
    assert aws.client("lambda", answer_s_max=600) is patient
    assert client.meta.config.read_timeout == 60
    assert patient.meta.config.read_timeout == 600
    assert aws.client("s3").meta.service_model.service_name == "s3"
