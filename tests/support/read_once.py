"""What libraries read from disk for each connection is read once for all tests of a process.

AWS's descriptions of its services take longer to read than most tests do, and so do the
certificates that PyMySQL reads though a database of ours has none.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import botocore.session
import pytest
from botocore.loaders import create_loader
from pymysql.connections import Connection

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True, scope="session")
def read_once() -> Iterator[None]:
    connection: Any = Connection
    read = connection._create_ssl_ctx
    kept: dict[str, Any] = {}

    def context(self: Connection[Any], options: Any) -> Any:
        key = repr(options)
        if key not in kept:
            kept[key] = read(self, options)
        return kept[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(botocore.session, "create_loader", cache(create_loader))
        patch.setattr(connection, "_create_ssl_ctx", context)
        yield
