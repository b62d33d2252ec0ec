"""Nessie, in memory: a REST catalogue with its own history, without branches or tags of tables.

It reads and writes the tables' metadata itself, so it needs an S3, which is the emulator's.
Tests: `with start_nessie(folder, emulator, "lake") as uri: load_catalog(type="rest", uri=uri)`.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from tools.local_stack.jars import NESSIE, ensure_jars
from tools.local_stack.java import nessie_java
from tools.local_stack.ports import HOST, choose_port
from tools.local_stack.servers import serving

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tools.local_stack.aws_emulator import Emulator

_S3 = "nessie.catalog.service.s3.default-options"


@contextlib.contextmanager
def start_nessie(folder: Path, emulator: Emulator, bucket: str) -> Iterator[str]:
    """Yield the address of an empty catalogue for as long as the block runs.

    Args:
        folder: an empty one, for the log.
        emulator: whose S3 keeps the tables.
        bucket: an existing one, which is its only warehouse.

    Raises:
        LocalStackError: there is no Java, its jar cannot be fetched, or it did not come up.
    """
    [jar] = ensure_jars(NESSIE)
    port, options = choose_port(0), emulator.client_options()
    settings = {
        "quarkus.http.host": HOST,
        "quarkus.http.port": port,
        "quarkus.management.host": HOST,
        "quarkus.management.port": 0,
        "nessie.version.store.type": "IN_MEMORY",
        "nessie.catalog.default-warehouse": bucket,
        f"nessie.catalog.warehouses.{bucket}.location": f"s3://{bucket}/warehouse",
        f"{_S3}.endpoint": options["endpoint_url"],
        f"{_S3}.region": options["region_name"],
        f"{_S3}.path-style-access": "true",
        f"{_S3}.auth-type": "STATIC",
        f"{_S3}.access-key": "urn:nessie-secret:quarkus:own",
        f"{_S3}.request-signing-enabled": "false",
        "own.name": options["aws_access_key_id"],
        "own.secret": options["aws_secret_access_key"],
    }
    with serving(
        [
            nessie_java(), "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
            *(f"-D{name}={value}" for name, value in settings.items()), "-jar", str(jar),
        ],
        port, what="Nessie", mark=jar.name, folder=folder, log=folder / "nessie.log",
        environment={"HOME": str(folder), "PATH": "/usr/bin:/bin"},
    ):  # fmt: skip
        yield f"http://{HOST}:{port}/iceberg"
