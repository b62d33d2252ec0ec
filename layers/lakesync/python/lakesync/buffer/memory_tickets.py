"""Tickets that open one WebSocket each, in one process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


class MemoryTickets:
    """`lakesync.ports.Tickets` in memory, for tests and for apps without a server."""

    def __init__(self) -> None:
        self._tickets: dict[str, tuple[dict[str, Any], int]] = {}

    def keep(self, digest: str, claims: Mapping[str, Any], until_ms: int) -> None:
        """Store what a ticket is good for."""
        self._tickets[digest] = dict(claims), until_ms

    def take(self, digest: str, now_ms: int) -> Mapping[str, Any] | None:
        """Return a ticket's claims, to one caller only."""
        claims, until_ms = self._tickets.pop(digest, ({}, now_ms - 1))
        return claims if until_ms >= now_ms else None
