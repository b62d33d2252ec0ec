"""Iceberg's own REST catalogue: the server that its other clients are tested against, on SQLite.

Tests: `with start_iceberg_rest(folder) as server: load_catalog("lake", type="rest", uri=server)`.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from tools.local_stack.jars import ICEBERG_REST, SPARK_S3, ensure_jars
from tools.local_stack.java import java
from tools.local_stack.ports import HOST, choose_port
from tools.local_stack.servers import serving

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_MAIN = "org.apache.iceberg.rest.RESTCatalogServer"
_HADOOP = "hadoop-client-"
"""How the names of the jars begin that Spark has been given already."""


@contextlib.contextmanager
def start_iceberg_rest(folder: Path) -> Iterator[str]:
    """Yield the address of an empty catalogue for as long as the block runs.

    Args:
        folder: an empty one: tables lie in ``warehouse``, and the log beside it.

    Raises:
        LocalStackError: there is no Java, its jars cannot be fetched, or it did not come up.
    """
    own = ensure_jars(ICEBERG_REST)
    hadoop = [jar for jar in ensure_jars(SPARK_S3) if jar.name.startswith(_HADOOP)]
    port, log = choose_port(0), folder / "iceberg-rest.log"
    with serving(
        [
            java(), "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
            "-cp", ":".join(map(str, [*own, *hadoop])), _MAIN,
        ],
        port, what="Iceberg's REST catalogue", mark=_MAIN, folder=folder, log=log,
        environment={
            "HOME": str(folder),
            "PATH": "/usr/bin:/bin",
            "CATALOG_REST_PORT": str(port),
            "CATALOG_URI": f"jdbc:sqlite:{folder / 'catalogue.db'}",
            "CATALOG_WAREHOUSE": str(folder / "warehouse"),
        },
    ):  # fmt: skip
        yield f"http://{HOST}:{port}"
