"""pytest's fixture of a gateway in memory: ``pytest_plugins = ["lakesync.testing.fixtures"]``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lakesync.testing.memory_gateway import MemoryGateway

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def lakesync_gateway(tmp_path: Path) -> Iterator[MemoryGateway]:
    """A gateway in memory, whose clients have their files in ``tmp_path``."""
    with MemoryGateway(tmp_path) as gateway:
        yield gateway
