"""The type of Stripe connectors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakesync.connectors.port import ConnectorType
from lakesync.connectors.stripe.configuration import StripeSettings

if TYPE_CHECKING:
    from lakesync.connectors.outside import Outside
    from lakesync.connectors.port import Connector
    from lakesync.connectors.storage import Storage


def _stripe(settings: StripeSettings, _: Storage, outside: Outside) -> Connector:
    from lakesync.connectors.stripe.source import StripeConnector  # noqa: PLC0415 - when polled

    return StripeConnector(settings, outside)


STRIPE = ConnectorType("stripe", "Stripe", StripeSettings, _stripe, StripeSettings.named)
