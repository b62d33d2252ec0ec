"""Requests as existing clients send them, over HTTP."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx

from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from tests.support.local_gateway import LocalGateway

_SENDER = httpx.Client(timeout=PATIENCE_S)
HLC = str((1_700_000_000_000 << 16) | 3)


def row(row_id: str = "row-1", op: str = "INSERT", **fields: Any) -> dict[str, Any]:
    """Return a delta as an existing client writes it, but without its id."""
    made = {
        "op": op,
        "table": "todos",
        "rowId": row_id,
        "clientId": "client-1",
        "columns": [{"column": "title", "value": "Test"}] if op != "DELETE" else [],
        "hlc": HLC,
    }
    return made | fields


def now() -> str:
    return str(int(time.time() * 1000) << 16)


@dataclass
class Asker:
    """One gateway, asked as its clients and administrators ask."""

    served: LocalGateway
    id: str

    def ask(
        self, method: str, path: str, *, token: str | None = None, client: str = "client-1",
        role: str = "client", **request: Any,
    ) -> httpx.Response:  # fmt: skip
        """Ask; ``{}`` in the path is the gateway's id."""
        bearer = token or self.served.token(client, gateway=self.id, role=role)
        headers = {"Authorization": f"Bearer {bearer}"} | request.pop("headers", {})
        url = self.served.url + path.format(self.id)
        return _SENDER.request(method, url, headers=headers, **request)

    def push(self, *deltas: dict[str, Any], **fields: Any) -> httpx.Response:
        """Push as `HttpTransport.push` does."""
        body = {"clientId": "client-1", "deltas": list(deltas), "lastSeenHlc": HLC} | fields
        # Escaped, so that halves of surrogate pairs can be sent.
        return self.ask(
            "POST", "/sync/{}/push", content=json.dumps(body).encode(), client=body["clientId"],
            headers={"Content-Type": "application/json"},
        )  # fmt: skip

    def pull(self, since: str = "0", client: str = "client-1", **query: str) -> httpx.Response:
        """Pull as `HttpTransport.pull` does."""
        params = {"since": since, "clientId": client, "limit": "1000"} | query
        return self.ask("GET", "/sync/{}/pull", params=params, client=client)

    def administer(self, path: str, body: Any, method: str = "POST") -> httpx.Response:
        return self.ask(method, f"/admin/{path}/{{}}", json=body, role="admin")
