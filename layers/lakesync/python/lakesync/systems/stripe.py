"""Stripe as a source: lists at first, then its events.

Stripe lists its objects page by page, without the time of their last change. Changes and deletions
are in its list of events, which it keeps for 30 days. So the first poll lists everything, and each
later poll reads the events since. The place among the events is recorded before the listing begins:
what changes meanwhile is read again, with a later time, and wins.

An event's time has whole seconds, but two events of one second must have an order. So each is dated
a microsecond after the previous one, and the cursor holds how many there were. Listed objects are
dated half a second after the latest event: later than everything that was brought before a reset,
and earlier than everything that happens from then on. A page that is read twice therefore has the
same times.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from pydantic import Field, SecretStr

from lakesync.connectors.http import Caller
from lakesync.connectors.port import (
    Change,
    ConnectorType,
    Settings,
    SourceColumn,
    SourcePage,
    SourceTable,
)
from lakesync.errors import AdapterFailed, LakeSyncError, NotFound
from lakesync.result import Err, Ok

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lakesync.connectors.port import Connector, Outside, Storage
    from lakesync.result import Result

# --- settings -------------------------------------------------------------------------------------


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
        return {table: f"stripe_{table}" for table in self.tables}


# --- reading --------------------------------------------------------------------------------------


PAGE_MAX: Final = 100
"""What Stripe gives at a time."""
_DAY_S: Final = 86_400
_LISTED_US: Final = 500_000
"""Of its second: behind the events before the listing, and before those after it."""


class StripeConnector:
    """`lakesync.connectors.port.Connector` of a Stripe account."""

    def __init__(self, settings: StripeSettings, outside: Outside) -> None:
        key = settings.api_key.get_secret_value()
        self._tables = settings.tables
        self._api = Caller(settings.url, outside, {"authorization": f"Bearer {key}"})

    def check(self) -> Result[str, LakeSyncError]:
        return _tried(self._checked)

    def _checked(self) -> str:
        for table in self._tables:
            self._api.get(f"/v1/{table}", limit=1, **TABLES[table].query)
            self._events(table, limit=1)
        return f"{', '.join(self._tables)} and their events can be read."

    def discover(self) -> Result[tuple[SourceTable, ...], LakeSyncError]:
        return Ok(tuple(_described(table) for table in TABLES))

    def read(
        self, table: str, cursor: str, *, rows_max: int, poll_ms: int
    ) -> Result[SourcePage, LakeSyncError]:
        if table not in TABLES:
            return Err(NotFound(f"there is no table {table[:60]}; there are {', '.join(TABLES)}"))
        limit = min(rows_max, PAGE_MAX)
        return _tried(lambda: self._page(table, cursor, limit, poll_ms // 1000))

    def close(self) -> None:
        self._api.close()

    def _page(self, table: str, cursor: str, limit: int, poll_s: int) -> SourcePage:
        place = json.loads(cursor) if cursor else self._beginning(table, poll_s)
        if cursor and place["after"] is None:
            return self._changed(table, place, limit, poll_s)
        return self._listed(table, place, limit)

    def _beginning(self, table: str, poll_s: int) -> dict[str, Any]:
        """Return the place before a listing: behind the latest event."""
        newest = self._events(table, limit=1)["data"]
        event, second = (newest[0]["id"], newest[0]["created"]) if newest else ("", poll_s - _DAY_S)
        return {"event": event, "after": None, "second": second, "same": _LISTED_US}

    def _listed(self, table: str, place: dict[str, Any], limit: int) -> SourcePage:
        """Return what there is behind the row that was listed last."""
        query = TABLES[table].query
        after = place["after"] or None
        answer = self._api.get(f"/v1/{table}", limit=limit, starting_after=after, **query)
        rows = answer["data"]
        listed_us = place["second"] * 10**6 + _LISTED_US
        changes = tuple(Change(row["id"], _columns(table, row), listed_us) for row in rows)
        place["after"] = rows[-1]["id"] if answer["has_more"] else None
        return SourcePage(changes, json.dumps(place), bool(answer["has_more"]))

    def _changed(self, table: str, place: dict[str, Any], limit: int, poll_s: int) -> SourcePage:
        """Return what happened since; Stripe gives the latest first."""
        answer = self._events(table, limit=limit, ending_before=place["event"] or None)
        if not place["event"] and answer["has_more"]:  # it was empty, and now it is not: list it
            return self._page(table, "", limit, poll_s)
        kind, changes = TABLES[table], []
        for event in reversed(answer["data"]):
            row, second = event["data"]["object"], event["created"]
            place["same"] = place["same"] + 1 if second <= place["second"] else 0
            place["second"] = max(place["second"], second)
            place["event"] = event["id"]
            if row["object"] == kind.object:  # customer.* has events of a customer's cards, too
                gone = kind.is_deleted and event["type"].endswith(".deleted")
                changed_us = place["second"] * 10**6 + place["same"]
                columns = None if gone else _columns(table, row)
                changes.append(Change(row["id"], columns, changed_us))
        return SourcePage(tuple(changes), json.dumps(place), bool(answer["has_more"]))

    def _events(self, table: str, **query: Any) -> Any:
        return self._api.get("/v1/events", type=f"{TABLES[table].events}*", **query)


def _described(table: str) -> SourceTable:
    columns = (
        SourceColumn("id", "string", nullable=False),
        SourceColumn("created", "timestamp"),
        *(SourceColumn(name, type_) for name, type_ in TABLES[table].columns.items()),
    )
    return SourceTable(table, columns, key=("id",))


def _columns(table: str, row: Mapping[str, Any]) -> dict[str, Any]:
    created = datetime.fromtimestamp(row["created"], UTC).isoformat()
    fields = {name: row.get(name) for name in TABLES[table].columns}
    return {"id": row["id"], "created": created, **fields}


def _tried(work: Callable[[], Any]) -> Result[Any, LakeSyncError]:
    try:
        return Ok(work())
    except LakeSyncError as error:  # 429 too: with the seconds that Stripe asks for
        return Err(error)
    except (KeyError, TypeError, ValueError) as exc:
        return Err(AdapterFailed(f"Stripe's answer is not as its API says: {type(exc).__name__}"))


# --- the type -------------------------------------------------------------------------------------


def _stripe(settings: StripeSettings, _: Storage, outside: Outside) -> Connector:

    return StripeConnector(settings, outside)


STRIPE = ConnectorType("stripe", "Stripe", StripeSettings, _stripe, StripeSettings.named)
