"""How the tests of the command line run it."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import pytest
from typer import testing
from typer.main import get_command

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True, scope="session")
def commands_are_made_once() -> Iterator[None]:
    """Typer makes all commands of an application anew for each line that is tried on it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(testing, "_get_command", cache(get_command))
        yield
