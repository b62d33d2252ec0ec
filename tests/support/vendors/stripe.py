"""Plays Stripe over HTTP, by the shapes of its API: lists, events, both the latest first."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from tests.support.vendors.server import Asked, Reply, VendorServer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lakesync.connectors import Connector

KEY = "rk_test_key"
LIMIT_MAX = 100


class StripeServer(VendorServer):
    """An account; also the bench of the contract of connectors, by its customers' names."""

    table = "customers"
    notices_deletions = True

    def __init__(self, make: Callable[[StripeServer], Connector]) -> None:
        super().__init__()
        self.customers: dict[str, dict[str, Any]] = {}
        self.subscriptions: dict[str, dict[str, Any]] = {}
        self.events: list[dict[str, Any]] = []
        self.now = 1_700_000_000
        self.per_second = 1
        """How much happens within one second."""
        self._make = make
        self._numbers = itertools.count(1)
        self.opened: list[Connector] = []
        """Connectors that are closed with it."""

    def connector(self) -> Connector:
        self.opened.append(self._make(self))
        return self.opened[-1]

    def close(self) -> None:
        for each in self.opened:
            each.close()
        super().close()

    # ---- what people do ---------------------------------------------------------------------

    def put(self, rows: Mapping[str, Any]) -> None:
        """Create or change customers, by id."""
        for row_id, value in rows.items():
            kind = "updated" if row_id in self.customers else "created"
            created = self.customers.get(row_id, {"created": self.now})["created"]
            self.customers[row_id] = {
                "id": row_id, "object": "customer", "created": created, "name": value,
                "email": None, "balance": 0, "metadata": {"plan": "a"},
            }  # fmt: skip
            self.happens(f"customer.{kind}", self.customers[row_id])

    def delete(self, row_id: str) -> None:
        self.happens("customer.deleted", self.customers.pop(row_id))

    def subscribe(self, row_id: str, customer: str) -> None:
        self.subscriptions[row_id] = {
            "id": row_id, "object": "subscription", "created": self.now, "customer": customer,
            "status": "active", "items": {"object": "list", "data": []},
        }  # fmt: skip
        self.happens("customer.subscription.created", self.subscriptions[row_id])

    def cancel(self, row_id: str) -> None:
        """Cancel a subscription: it is called deleted, and stays."""
        self.subscriptions[row_id]["status"] = "canceled"
        self.happens("customer.subscription.deleted", self.subscriptions[row_id])

    def happens(self, kind: str, thing: dict[str, Any]) -> None:
        number = next(self._numbers)
        event = {"id": f"evt_{number:05}", "object": "event", "type": kind, "created": self.now}
        self.events.append({**event, "data": {"object": dict(thing)}})
        self.now += number % self.per_second == 0

    def value(self, columns: Mapping[str, Any]) -> Any:
        return columns["name"]

    # ---- the API ----------------------------------------------------------------------------

    def answer(self, asked: Asked) -> Reply:
        if asked.headers.get("authorization") != f"Bearer {KEY}":
            return Reply(401, {"error": {"type": "invalid_request_error"}})
        if asked.path == "/v1/customers":
            return self._listed(list(self.customers.values()), asked)
        if asked.path in {"/v1/invoices", "/v1/products"}:
            return self._listed([], asked)
        if asked.path == "/v1/subscriptions":
            wanted = asked.query.get("status")
            ones = list(self.subscriptions.values())
            shown = [one for one in ones if wanted == "all" or one["status"] != "canceled"]
            return self._listed(shown, asked)
        if asked.path == "/v1/events":
            prefix = asked.query["type"].removesuffix("*")
            return self._listed([e for e in self.events if e["type"].startswith(prefix)], asked)
        return Reply(404, {"error": {"message": f"Unrecognized request URL {asked.path}"}})

    def _listed(self, things: list[dict[str, Any]], asked: Asked) -> Reply:
        """Return a page of a list, the latest first, before or behind one of it."""
        latest_first = things[::-1]
        limit = int(asked.query.get("limit", 10))
        if not 1 <= limit <= LIMIT_MAX:
            return Reply(400, {"error": {"message": "limit"}})
        ids = [thing["id"] for thing in latest_first]
        for name in ("starting_after", "ending_before"):
            if name in asked.query and asked.query[name] not in ids:
                return Reply(400, {"error": {"code": "resource_missing", "param": name}})
        if "ending_before" in asked.query:
            end = ids.index(asked.query["ending_before"])
            start = max(end - limit, 0)
            page, has_more = latest_first[start:end], start > 0
        else:
            after = asked.query.get("starting_after")
            start = ids.index(after) + 1 if after else 0
            page, has_more = latest_first[start : start + limit], start + limit < len(ids)
        return Reply(body={"object": "list", "data": page, "has_more": has_more})
