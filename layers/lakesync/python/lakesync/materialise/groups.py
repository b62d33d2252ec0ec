"""Groups of gateways: what a lease is for. Pure.

Runs share the work group by group. A gateway is in the same group for ever, whatever runs there
are, so two of them never work on one gateway's tables; and a run takes a group only when it has
room for its tables, so the others find something to take.
"""

from __future__ import annotations

from typing import Final
from zlib import crc32

from lakesync.core.claims import CLAIMS

GATEWAY_GROUPS: Final = 64
"""Groups of gateways, by a hash of their ids: some for each of the runs that there may be."""


def group_of(gateway: str) -> int:
    """Give the group of a gateway."""
    return crc32(gateway.encode()) % GATEWAY_GROUPS


def table_of(claim_key: str) -> str:
    """Give the table that a claim lies under, as ``gateway/table``."""
    return claim_key.removeprefix(CLAIMS).rpartition("/")[0]


def group_of_table(table: str) -> int:
    """Give the group of the gateway in ``gateway/table``."""
    return group_of(table.partition("/")[0])
