"""`lakesync flush`: write buffered commits to the lake's store now."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Final
from urllib.parse import urlencode

import typer

from lakesync.cli.existence import must_exist
from lakesync.cli.session import Session, command
from lakesync.core.plural import plural
from lakesync.errors import Unavailable

if TYPE_CHECKING:
    from lakesync.cli.aws import Aws

_POLL_S: Final = 1.0


@command
def flush(
    session: Session,
    *,
    table: Annotated[
        str | None,
        typer.Option(help="Flush only this table; the others wait for the next flush."),
    ] = None,
    wait: Annotated[
        bool,
        typer.Option(
            "--wait", help="Also wait until the Iceberg tables have it. Needs AWS credentials."
        ),
    ] = False,
    timeout: Annotated[int, typer.Option(help="Seconds to wait for the tables.", min=1)] = 300,
) -> None:
    """Flush all commits so far from the buffer to the lake's store now. Safe to repeat.

    A schedule also does this. The Iceberg tables have the data once the Glue job has merged it,
    usually half a minute later.

    Example:
      lakesync flush --wait
      lakesync flush --table todos
    """
    gateway = session.connection.gateway
    must_exist(session)
    with session.out.progress("flushing …"):
        asked = f"?{urlencode({'table': table})}" if table is not None else ""
        done = session.ask("POST", f"/admin/flush/{gateway}{asked}")
    sentence = (
        f"flushed {plural(done.get('deltas', 0), 'delta')} in "
        f"{plural(done.get('batches', 0), 'batch')}"
    ) + (f" of {table}" if table else "")
    if wait:
        started = time.monotonic()
        with session.out.progress(f"{sentence}; waiting for the Glue job …"):
            wait_for_lake(session.aws, gateway, timeout)
        done["materialised"] = True
        sentence += f"; the tables hold it after {time.monotonic() - started:.0f} s"
    session.out.answer(done, sentence)


def waiting_batches(aws: Aws, gateway: str | None) -> int:
    """Count the batches that are announced and not yet in the tables: a gateway's, or all."""
    pages = aws.client("s3").get_paginator("list_objects_v2")
    prefix = "claims/" if gateway is None else f"claims/{gateway}/"
    listed = pages.paginate(Bucket=aws.output("LakeBucket"), Prefix=prefix)
    return sum(page.get("KeyCount", 0) for page in listed)


def wait_for_lake(aws: Aws, gateway: str, timeout_s: float) -> None:
    """Return once the tables hold everything that was announced.

    Raises:
        Unavailable: they do not after ``timeout_s``; the work goes on without us.
    """
    deadline = time.monotonic() + timeout_s
    while batches := waiting_batches(aws, gateway):
        if time.monotonic() > deadline:
            raise Unavailable(
                f"{plural(batches, 'batch')} still wait for the Glue job after {timeout_s:.0f} s; "
                "look at `lakesync status`, and wait again with `lakesync flush --wait`"
            )
        time.sleep(_POLL_S)
