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
from tests.support.stores import TABLE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lakesync.buffer.items import ItemStore
    from lakesync.ports import Buffer
    from tests.support.stores import Address

_numbers = itertools.count()


@pytest.fixture
def in_moto(credentials: None) -> Iterator[None]:
    """S3 in this process."""
    del credentials
    with mock_aws():
        yield


@pytest.fixture
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """What requests are signed with."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")


@pytest.fixture(
    params=[
        "memory",
        "model",
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
    request.getfixturevalue("credentials")
    if store == "model":
        return modelled_buffer()
    address: Address = request.getfixturevalue("dynamodb_local")
    return address.buffer()


@pytest.fixture
def item_store(store: str, request: pytest.FixtureRequest) -> ItemStore:
    """An item store of each implementation."""
    if store == "memory":
        return MemoryItemStore()
    request.getfixturevalue("credentials")
    if store == "model":
        return DynamoItemStore(TABLE, modelled_buffer()._call)
    address: Address = request.getfixturevalue("dynamodb_local")
    return DynamoItemStore(TABLE, address.caller())


@pytest.fixture
def gateway() -> str:
    """A gateway that no test used before."""
    return f"g{next(_numbers)}"
