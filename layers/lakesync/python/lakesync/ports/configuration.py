"""What was declared for a gateway: rules, schemas, destinations."""

from __future__ import annotations

from typing import (
    TYPE_CHECKING,
    Protocol,
)

if TYPE_CHECKING:
    from lakesync.core.clock import Stamp
    from lakesync.core.config import GatewayConfig
    from lakesync.core.destinations import Destinations
    from lakesync.core.layout import Lanes
    from lakesync.ports.entries import Head


class Configurations(Protocol):
    """What is declared of gateways."""

    def config(self, gateway: str) -> GatewayConfig:
        """Return the configuration in force; version 0 if nothing was ever declared."""
        ...

    def save_config(
        self, gateway: str, config: GatewayConfig, seen: Head | None, lanes: Lanes, to: Stamp,
        *, epoch: str = "",
    ) -> None:  # fmt: skip
        """Put a configuration in force and its version into the main lane's head, atomically.

        Args:
            gateway: whose.
            config: the configuration.
            seen: the main lane's head, as it was read; None if there is none.
            lanes: the new lanes: all but the main lane closed.
            to: the new commit of the main lane's head, above the present one.
            epoch: what the main lane's head gets if it was seen without an epoch.

        Raises:
            HeadMoved: the lanes are not as seen, or the head is at ``to`` or above.
            ConfigMoved: the version in force is not ``config.version - 1``.
            lakesync.errors.Conflict: it has outgrown one item.
        """
        ...

    def gateways(self) -> list[str]:
        """Return every gateway that was ever written to."""
        ...


class DestinationStore(Protocol):
    """What is declared of gateways' destinations."""

    def destinations(self, gateway: str) -> Destinations:
        """Return the declarations; version 0 if there never were any."""
        ...

    def save_destinations(self, gateway: str, destinations: Destinations) -> bool:
        """Put a document in force; False, and nothing written, if its predecessor is not in force.

        Raises:
            lakesync.errors.Conflict: it has outgrown one item.
        """
        ...
