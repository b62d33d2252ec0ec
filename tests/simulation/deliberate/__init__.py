"""Faults put in on purpose, to show that the simulation finds them."""

from tests.simulation.deliberate import (
    in_access,
    in_checkpoints,
    in_client,
    in_conflicts,
    in_destinations,
    in_flows,
    in_flush,
    in_gateway,
    in_merge,
    in_omission,
    in_pending_echo,
    in_recent_heads,
    in_rules,
    in_sockets,
    in_upkeep,
    in_values,
)
from tests.simulation.deliberate.registry import FAULTS, Deliberate, broken

__all__ = [
    "FAULTS",
    "Deliberate",
    "broken",
    "in_access",
    "in_checkpoints",
    "in_client",
    "in_conflicts",
    "in_destinations",
    "in_flows",
    "in_flush",
    "in_gateway",
    "in_merge",
    "in_omission",
    "in_pending_echo",
    "in_recent_heads",
    "in_rules",
    "in_sockets",
    "in_upkeep",
    "in_values",
]
