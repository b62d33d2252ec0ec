"""Worlds for client tests: the same tests over the naive gateway and over the real one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.client.support.crashes import CrashingConnection
from tests.client.support.world import World

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from lakesync.client import Client


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A world around the naive gateway."""
    made = World(tmp_path)
    yield made
    made.close()


@pytest.fixture(params=["naive", "real"])
def both(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[World]:
    """A world around each gateway in turn."""
    made = World(tmp_path, request.param)
    yield made
    made.close()


@pytest.fixture
def client(world: World) -> Client:
    """A client of that world."""
    return world.client()


@pytest.fixture(autouse=True)
def _immortal() -> Iterator[None]:
    """No connection dies in the test after one in which some did."""
    yield
    CrashingConnection.left = 1 << 60
