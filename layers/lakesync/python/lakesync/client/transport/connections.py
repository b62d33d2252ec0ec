"""The connections of an `HttpTransport`, and how long they are waited for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lakesync.client.transport.certificates import trusted

if TYPE_CHECKING:
    from collections.abc import Mapping

    import httpx


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long to wait, by phase: ``HttpTransport(..., timeouts=Timeouts(read_s=60))``."""

    connect_s: float = 5.0
    write_s: float = 15.0
    read_s: float = 35.0
    """For the next bytes of the answer; API Gateway itself gives up after 30."""
    pool_s: float = 5.0
    """For a free connection, if several threads share the transport."""


def connections(
    module: Any,
    address: str,
    headers: Mapping[str, str],
    http: httpx.BaseTransport | None,
    timeouts: Timeouts,
) -> tuple[httpx.Client, httpx.Client]:
    """Return what asks the gateway, and what asks other servers; ``module`` is httpx.

    Signed addresses point to other servers, which must not see the token.
    """
    timeout = module.Timeout(
        connect=timeouts.connect_s,
        write=timeouts.write_s,
        read=timeouts.read_s,
        pool=timeouts.pool_s,
    )
    shared = {"transport": http, "timeout": timeout, "verify": trusted()}
    return module.Client(base_url=address, headers=headers, **shared), module.Client(**shared)
