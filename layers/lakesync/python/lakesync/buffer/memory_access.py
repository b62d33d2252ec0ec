"""The users of clients, and the revocations, in one process."""

from __future__ import annotations

import threading
from collections import defaultdict
from typing import TYPE_CHECKING

from lakesync.buffer.keys import check_gateway, client_place, revoked_sk
from lakesync.ports import GATEWAY_KIND, KnownClient

if TYPE_CHECKING:
    from lakesync.ports import Revocation, Seen


class MemoryAccess:
    """`lakesync.ports.AccessStore` in memory, for tests and for apps without a server."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users: dict[tuple[str, str], str] = {}
        self._seen: dict[tuple[str, str], Seen] = {}
        self._revoked: dict[str, dict[str, Revocation]] = defaultdict(dict)

    def client(self, gateway: str, client_id: str) -> KnownClient | None:
        """Return a client; None if it is unbound."""
        user = self._users.get((check_gateway(gateway), client_id))
        return None if user is None else self._known(gateway, client_id, user)

    def note(self, gateway: str, client_id: str, seen: Seen) -> None:
        """Note what was seen of a client, unless something later was noted."""
        with self._lock:
            name = check_gateway(gateway), client_id
            last = self._seen.get(name)
            if name in self._users and (last is None or last.at_ms < seen.at_ms):
                self._seen[name] = seen

    def _known(self, gateway: str, client_id: str, user: str) -> KnownClient:
        return KnownClient(client_id, user, self._seen.get((gateway, client_id)))

    def bind(self, gateway: str, client_id: str, user: str) -> str:
        """Bind a client, unless it is bound; give the user to whom it is bound."""
        with self._lock:
            return self._users.setdefault((check_gateway(gateway), client_id), user)

    def release(self, gateway: str, client_id: str) -> None:
        """Bind a client to no user."""
        with self._lock:
            self._users.pop((check_gateway(gateway), client_id), None)
            self._seen.pop((gateway, client_id), None)

    def remove(self, gateway: str) -> None:
        """Remove a gateway's clients and revocations, except that of the gateway itself."""
        with self._lock:
            for client in [client for client in self._users if client[0] == gateway]:
                del self._users[client]
                self._seen.pop(client, None)
            kept = revoked_sk(GATEWAY_KIND, gateway)
            revoked = self._revoked[check_gateway(gateway)]
            for name in [name for name in revoked if name != kept]:
                del revoked[name]

    def count_items(self, gateway: str) -> dict[str, int]:
        """Count them."""
        with self._lock:
            revoked = self._revoked[check_gateway(gateway)]
            return {
                "users": sum(client[0] == gateway for client in self._users),
                "revocations": len(revoked.keys() - {revoked_sk(GATEWAY_KIND, gateway)}),
            }

    def clients(self, gateway: str, place: str, limit: int) -> tuple[list[KnownClient], str]:
        """Return some clients."""
        check_gateway(gateway)
        with self._lock:
            known = {
                client_place(name): self._known(gateway, name, user)
                for (owner, name), user in self._users.items()
                if owner == gateway
            }
        places = sorted((one for one in known if one > place), key=str.encode)
        page = places[:limit]
        return [known[one] for one in page], page[-1] if len(places) > limit else ""

    def revocations(self, gateway: str) -> list[Revocation]:
        """Return all revocations."""
        with self._lock:
            revoked = sorted(
                self._revoked[check_gateway(gateway)].items(), key=lambda item: item[0].encode()
            )
            return [revocation for _, revocation in revoked]

    def revoke(self, gateway: str, revocation: Revocation) -> None:
        """Revoke a user or a client."""
        with self._lock:
            name = revoked_sk(revocation.kind, revocation.name)
            self._revoked[check_gateway(gateway)][name] = revocation

    def restore(self, gateway: str, kind: str, name: str) -> None:
        """Let a user or a client in again."""
        with self._lock:
            self._revoked[check_gateway(gateway)].pop(revoked_sk(kind, name), None)
