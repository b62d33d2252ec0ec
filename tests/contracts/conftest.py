"""The implementations that the contract suites run on."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest
from moto import mock_aws

from lakesync.buffer.dynamo_items import DynamoItemStore
from lakesync.buffer.memory_buffer import MemoryBuffer
from lakesync.buffer.memory_items import MemoryItemStore
from tests.support.modelled import modelled_buffer
from tests.support.stores import TABLE, Servers
from tools.local_stack.aws_emulator import start_emulator

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lakesync.buffer.items import ItemStore
    from lakesync.ports import Buffer

_numbers = itertools.count()


@pytest.fixture(scope="session")
def servers() -> Iterator[Servers]:
    """The local DynamoDBs, started when they are first asked for."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "test")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        servers = Servers()
        try:
            yield servers
        finally:
            servers.close()


@pytest.fixture(scope="session")
def bucket_endpoint() -> Iterator[str]:
    """The AWS emulator's S3, by its address."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "test")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        with start_emulator() as emulator:
            yield str(emulator.client_options()["endpoint_url"])


@pytest.fixture
def in_moto(credentials: None) -> Iterator[None]:
    """S3 in this process."""
    del credentials
    with mock_aws():
        yield


@pytest.fixture
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """What requests to the model are signed with."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")


@pytest.fixture(
    params=[
        "memory",
        "model",
        pytest.param("emulator", marks=pytest.mark.emulator),
        pytest.param("dynamodb_local", marks=pytest.mark.emulator),
    ]
)
def store(request: pytest.FixtureRequest) -> str:
    """The name of an implementation."""
    name: str = request.param
    return name


@pytest.fixture
def buffer(store: str, request: pytest.FixtureRequest) -> Buffer:
    """A buffer of each implementation."""
    if store == "memory":
        return MemoryBuffer()
    if store == "model":
        request.getfixturevalue("credentials")
        return modelled_buffer()
    servers: Servers = request.getfixturevalue("servers")
    return (servers.emulator() if store == "emulator" else servers.dynamodb_local()).buffer()


@pytest.fixture
def item_store(store: str, request: pytest.FixtureRequest) -> ItemStore:
    """An item store of each implementation."""
    if store == "memory":
        return MemoryItemStore()
    if store == "model":
        request.getfixturevalue("credentials")
        return DynamoItemStore(TABLE, modelled_buffer()._call)
    servers: Servers = request.getfixturevalue("servers")
    address = servers.emulator() if store == "emulator" else servers.dynamodb_local()
    return DynamoItemStore(TABLE, address.caller())


@pytest.fixture
def gateway() -> str:
    """A gateway that no test used before."""
    return f"g{next(_numbers)}"
