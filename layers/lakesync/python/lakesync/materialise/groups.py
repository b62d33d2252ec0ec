"""Groups of gateways, each with one lease. Pure.

Runs divide the work by groups. A gateway is always in the same group, whatever runs there are, so
two runs never work on one gateway's tables. A run takes a group only when it has room for its
tables, so that work is left for the others.
"""

from __future__ import annotations

from typing import Final
from zlib import crc32

from lakesync.core.claims import CLAIMS

GATEWAY_GROUPS: Final = 64
"""Groups of gateways, by a hash of their ids: several for each of the possible runs."""
STARTING: Final = GATEWAY_GROUPS
"""The number behind the last group: its lease is held by who decides how many runs are started."""


def group_of(gateway: str) -> int:
    """Return the group of a gateway."""
    return crc32(gateway.encode()) % GATEWAY_GROUPS


def table_of(claim_key: str) -> str:
    """Return the table of a claim, as ``gateway/table``."""
    return claim_key.removeprefix(CLAIMS).rpartition("/")[0]


def group_of_table(table: str) -> int:
    """Return the group of the gateway in ``gateway/table``."""
    return group_of(table.partition("/")[0])
