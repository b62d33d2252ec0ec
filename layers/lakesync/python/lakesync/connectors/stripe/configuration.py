"""How a Stripe connector is configured, and which tables it has."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from pydantic import Field, SecretStr

from lakesync.connectors.sql.configuration import Settings

if TYPE_CHECKING:
    from collections.abc import Mapping

URL: Final = "https://api.stripe.com"
TableName = Literal[
    "charges", "customers", "invoices", "payment_intents", "prices", "products", "subscriptions"
]


class Listed(NamedTuple):
    """One kind of Stripe's objects, as it is listed and as its events have it."""

    object: str
    """The object's own name of its kind."""
    events: str
    """What the types of its events begin with."""
    columns: Mapping[str, str]
    """Its fields that are read, each with its type; besides ``id`` and ``created``."""
    query: Mapping[str, str] = MappingProxyType({})
    """What lists all of them."""
    is_deleted: bool = True
    """Whether it is gone once an event says that it was deleted."""


def _of(**columns: str) -> Mapping[str, str]:
    return MappingProxyType(columns | {"metadata": "json"})


TABLES: Final[Mapping[str, Listed]] = MappingProxyType({
    "charges": Listed("charge", "charge.", _of(
        customer="string", payment_intent="string", amount="integer", amount_refunded="integer",
        currency="string", status="string", paid="boolean", refunded="boolean",
    )),
    "customers": Listed("customer", "customer.", _of(
        name="string", email="string", phone="string", description="string", balance="integer",
        delinquent="boolean",
    )),
    "invoices": Listed("invoice", "invoice.", _of(
        customer="string", number="string", status="string", total="integer",
        amount_due="integer", amount_paid="integer", currency="string",
    )),
    "payment_intents": Listed("payment_intent", "payment_intent.", _of(
        customer="string", amount="integer", amount_received="integer", currency="string",
        status="string",
    )),
    "prices": Listed("price", "price.", _of(
        product="string", active="boolean", unit_amount="integer", currency="string",
        type="string", recurring="json",
    )),
    "products": Listed("product", "product.", _of(
        name="string", description="string", active="boolean",
    )),
    # One that is cancelled is listed as any other, with its status.
    "subscriptions": Listed("subscription", "customer.subscription.", _of(
        customer="string", status="string", currency="string", cancel_at_period_end="boolean",
        items="json",
    ), MappingProxyType({"status": "all"}), is_deleted=False),
})  # fmt: skip


class StripeSettings(Settings):
    """An account, and what of it is read."""

    api_key: SecretStr = Field(description="A restricted key that may read events and the tables.")
    tables: list[TableName] = Field(
        default=["customers", "products", "invoices"], min_length=1, max_length=len(TABLES),
         description="Which objects; each is a table stripe_….",
    )  # fmt: skip
    url: str = Field(URL, max_length=255, description="https:// and the host.")

    def named(self) -> Mapping[str, str]:
        """Return the tables, each with its name in the gateway."""
        return {table: f"stripe_{table}" for table in self.tables}
