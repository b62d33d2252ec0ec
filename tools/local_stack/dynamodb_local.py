"""Amazon's own DynamoDB for one machine, in memory.

Tests: `with start_dynamodb_local() as local: boto3.client("dynamodb", **local.client_options())`.
"""

from __future__ import annotations

import contextlib
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tools.local_stack.clients import ClientOptions, client_options
from tools.local_stack.jars import DYNAMODB_LOCAL, ensure_jars
from tools.local_stack.java import java
from tools.local_stack.ports import HOST, choose_port
from tools.local_stack.servers import serving

if TYPE_CHECKING:
    from collections.abc import Iterator

_MAIN = "software.amazon.dynamodb.services.local.main.ServerRunner"


@dataclass(frozen=True)
class DynamoDBLocal:
    """A running DynamoDB Local, and how to reach it."""

    port: int

    @property
    def endpoint(self) -> str:
        """Its URL."""
        return f"http://{HOST}:{self.port}"

    def client_options(self) -> ClientOptions:
        """Keyword arguments for `boto3.client` and `boto3.resource`."""
        return client_options(self.endpoint)


@contextlib.contextmanager
def start_dynamodb_local(port: int = 0) -> Iterator[DynamoDBLocal]:
    """An empty DynamoDB Local for as long as the block runs; port 0 is any free one.

    Raises:
        LocalStackError: there is no Java, its jars cannot be fetched, or it did not come up.
    """
    folder = ensure_jars(DYNAMODB_LOCAL)[0].parent
    chosen = choose_port(port)
    with tempfile.TemporaryDirectory(prefix="lakesync-dynamodb-") as scratch, serving(
        [
            java(), "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
            f"-Djava.library.path={folder}", "-cp", f"{folder}/*", _MAIN,
            "-inMemory", "-port", str(chosen), "-disableTelemetry",
        ],
        chosen, what="DynamoDB Local", mark=_MAIN,
        environment={"HOME": scratch, "PATH": "/usr/bin:/bin"},
        folder=Path(scratch), log=Path(scratch) / "dynamodb-local.log",
    ):  # fmt: skip
        yield DynamoDBLocal(chosen)
