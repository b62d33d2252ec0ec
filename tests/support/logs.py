"""What the functions log, for tests to read."""

from __future__ import annotations

import io
from contextlib import contextmanager
from typing import TYPE_CHECKING

from lakesync.runtime import observe

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest


@contextmanager
def logged(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """Yield everything that is logged meanwhile, at the most talkative level."""
    stream = io.StringIO()
    monkeypatch.setattr(observe.logger.registered_handler, "stream", stream)
    before = observe.logger.log_level
    observe.logger.setLevel("DEBUG")
    yield stream
    observe.logger.setLevel(before)
