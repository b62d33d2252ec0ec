"""The stores beside the buffer, in one process: for tests, and for apps without a server.

Users of clients and revocations, quotas, tickets, open WebSockets, connectors, actions, audit
records; and the removal of all that is stored of one gateway.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from lakesync.buffer.admin_stores import bounds, owner_of
from lakesync.buffer.admission import WINDOWS_AHEAD_MAX
from lakesync.buffer.item_format import check_gateway, client_place, revoked_sk
from lakesync.ports import (
    GATEWAY_KIND,
    ActionKey,
    ActionRun,
    AuditOutcome,
    Connection,
    KnownClient,
    NotifyState,
    Quota,
    RunState,
    StoredConnector,
    StoredHandler,
    Usage,
    WindowUsage,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from lakesync.buffer.memory_buffer import MemoryBuffer
    from lakesync.core.clock import Stamp
    from lakesync.ports import AuditQuery, AuditRecord, Revocation, Seen


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


class MemoryQuotas:
    """`lakesync.ports.QuotaStore` in memory."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._used: dict[str, tuple[int, Usage]] = {}
        self._quotas: dict[str, Quota] = {}

    def report(self, gateway: str, window: int, usage: Usage) -> WindowUsage:
        """Add to the usage, and give what all processes have reported."""
        with self._lock:
            on, used = self._used.get(check_gateway(gateway), (-1, Usage()))
            if not window <= on <= window + WINDOWS_AHEAD_MAX:
                on, used = window, Usage()
            used = Usage(*(a + b for a, b in zip(used, usage, strict=True)))
            self._used[gateway] = (on, used)
            return WindowUsage(on, used, self._quotas.get(gateway, Quota()))

    def remove(self, gateway: str) -> None:
        """Remove a gateway's usage and quota."""
        with self._lock:
            self._used.pop(gateway, None)
            self._quotas.pop(gateway, None)

    def count_items(self, gateway: str) -> dict[str, int]:
        """Count its records: 1 if there is any."""
        return {"quota": int(gateway in self._used or gateway in self._quotas)}

    def quota(self, gateway: str) -> Quota:
        """Return the quota that was set for a gateway."""
        return self._quotas.get(check_gateway(gateway), Quota())

    def set_quota(self, gateway: str, quota: Quota) -> None:
        """Set how much a gateway may use."""
        self._quotas[check_gateway(gateway)] = quota


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


@dataclass(slots=True)
class _Turn:
    """The process that notifies, and how far was notified."""

    state: NotifyState = field(default_factory=NotifyState)
    owner: str = ""
    until_ms: int = 0


class MemoryConnections:
    """`lakesync.ports.Connections` in memory, for tests and for apps without a server."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connections: dict[str, dict[str, Connection]] = defaultdict(dict)
        self._turns: dict[str, _Turn] = defaultdict(_Turn)

    def add(self, connection: Connection) -> None:
        """Store a connection."""
        self._connections[check_gateway(connection.gateway)][connection.id] = connection

    def get(self, gateway: str, connection_id: str) -> Connection | None:
        """Return a connection."""
        return self._connections[check_gateway(gateway)].get(connection_id)

    def rescope(self, connection: Connection) -> None:
        """Store the scope of a connection, unless it was removed."""
        with self._lock:
            known = self._connections[connection.gateway]
            if connection.id in known:
                known[connection.id] = replace(
                    known[connection.id],
                    scope=connection.scope,
                    rules=connection.rules,
                )

    def count_frames(self, connection: Connection, window: int, frames: int) -> bool:
        """Add to the frames of a connection in a span of time."""
        with self._lock:
            known = self._connections[connection.gateway].get(connection.id)
            is_begun = connection.window == window
            if known is None or (known.window != window if is_begun else known.window >= window):
                return False
            self._connections[connection.gateway][connection.id] = replace(
                known, window=window, frames=frames + (known.frames if is_begun else 0)
            )
            return True

    def remove(self, gateway: str, connection_id: str) -> None:
        """Remove a connection."""
        self._connections[check_gateway(gateway)].pop(connection_id, None)

    def of_gateway(self, gateway: str) -> tuple[list[Connection], NotifyState]:
        """Return all connections of a gateway."""
        known = self._connections[check_gateway(gateway)]
        return [known[name] for name in sorted(known)], self._turns[gateway].state

    def scan(self, place: str) -> tuple[list[Connection], str]:
        """Return the connections of one gateway, and the next one."""
        gateways = sorted(name for name in self._connections if name > place)
        if not gateways:
            return [], ""
        more = gateways[0] if len(gateways) > 1 else ""
        return list(self._connections[gateways[0]].values()), more

    def begin(self, gateway: str, owner: str, now_ms: int, until_ms: int) -> bool:
        """Become the process that notifies."""
        with self._lock:
            turn = self._turns[check_gateway(gateway)]
            if turn.owner not in {"", owner} and turn.until_ms >= now_ms:
                return False
            turn.owner, turn.until_ms = owner, until_ms
            return True

    def leave(self, gateway: str, commit: Stamp, now_ms: int) -> bool:
        """Leave a commit to the process in charge."""
        with self._lock:
            turn = self._turns[check_gateway(gateway)]
            if not turn.owner or turn.until_ms < now_ms:
                return False
            turn.state = replace(turn.state, wanted=max(turn.state.wanted, commit))
            return True

    def hand_on(self, gateway: str, owner: str, state: NotifyState) -> None:
        """End the turn, and store where the next process continues."""
        with self._lock:
            turn = self._turns[check_gateway(gateway)]
            if turn.owner == owner:
                turn.state = replace(state, wanted=turn.state.wanted)
                turn.owner, turn.until_ms = "", 0

    def end(self, gateway: str, owner: str, notified: Stamp) -> bool:
        """Note how far was notified, and end the turn."""
        with self._lock:
            turn = self._turns[check_gateway(gateway)]
            if turn.owner != owner:
                return True
            wanted = turn.state.wanted
            if wanted > notified:
                turn.state = NotifyState(notified, wanted)
                return False
            turn.state, turn.owner, turn.until_ms = NotifyState(notified), "", 0
            return True


class MemoryConnectors:
    """`lakesync.ports.ConnectorStore` in memory."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stored: dict[tuple[str, str], StoredConnector] = {}

    def connectors(self, gateway: str) -> list[StoredConnector]:
        """Return a gateway's connectors, in the order of their names."""
        check_gateway(gateway)
        with self._lock:
            return [self._stored[key] for key in sorted(self._stored) if key[0] == gateway]

    def connector(self, gateway: str, name: str) -> StoredConnector | None:
        """Return one of them; None if there is none of that name."""
        return self._stored.get((check_gateway(gateway), name))

    def add(self, gateway: str, name: str, definition: bytes, now_ms: int) -> bool:
        """Register one; False if the name is in use."""
        with self._lock:
            added = StoredConnector(name, definition, b"", now_ms, 0)
            return self._stored.setdefault((check_gateway(gateway), name), added) is added

    def change(self, gateway: str, name: str, seen: bytes, definition: bytes) -> bool:
        """Change a definition; False if it was not as seen."""
        with self._lock:
            stored = self.connector(gateway, name)
            if stored is None or stored.definition != seen:
                return False
            self._stored[gateway, name] = replace(stored, definition=definition)
            return True

    def remove(self, gateway: str, name: str) -> None:
        """Remove one."""
        with self._lock:
            self._stored.pop((check_gateway(gateway), name), None)

    def remove_all(self, gateway: str) -> None:
        """Remove all of a gateway."""
        for each in self.connectors(gateway):
            self.remove(gateway, each.name)

    def count_items(self, gateway: str) -> dict[str, int]:
        """Count them."""
        return {"connectors": len(self.connectors(gateway))}

    def lease(
        self, gateway: str, name: str, now_ms: int, until_ms: int, mine: int = 0
    ) -> StoredConnector | None:
        """Take the right to poll one; None if another process has it."""
        with self._lock:
            stored = self.connector(gateway, name)
            if stored is None or not (stored.leased_until_ms <= now_ms or stored.lease == mine):
                return None
            leased = replace(stored, lease=stored.lease + 1, leased_until_ms=until_ms)
            self._stored[gateway, name] = leased
            return leased

    def save(self, gateway: str, name: str, lease: int, state: bytes, until_ms: int) -> bool:
        """Save the progress of one; False if the lease is another's."""
        with self._lock:
            stored = self.connector(gateway, name)
            if stored is None or stored.lease != lease:
                return False
            self._stored[gateway, name] = replace(stored, state=state, leased_until_ms=until_ms)
            return True


class MemoryHandlers:
    """`lakesync.ports.HandlerStore` in memory."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stored: dict[tuple[str, str], bytes] = {}

    def handlers(self, gateway: str) -> list[StoredHandler]:
        """Return a gateway's action handlers, in the order of their names."""
        check_gateway(gateway)
        with self._lock:
            return [
                StoredHandler(name, definition)
                for (of, name), definition in sorted(self._stored.items())
                if of == gateway
            ]

    def add(self, gateway: str, name: str, definition: bytes, *, replace: bool) -> bool:
        """Register one; False if the name is in use and may not be replaced."""
        key = (check_gateway(gateway), name)
        with self._lock:
            if key in self._stored and not replace:
                return False
            self._stored[key] = definition
            return True

    def remove(self, gateway: str, name: str) -> bool:
        """Remove one; False if there was none."""
        with self._lock:
            return self._stored.pop((check_gateway(gateway), name), None) is not None

    def remove_all(self, gateway: str) -> None:
        """Remove all of a gateway."""
        for each in self.handlers(gateway):
            self.remove(gateway, each.name)

    def count_items(self, gateway: str) -> Mapping[str, int]:
        """Count them."""
        return {"actions": len(self.handlers(gateway))}


class MemoryRuns:
    """`lakesync.ports.ActionRuns` in memory."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: dict[tuple[str, str, str], ActionRun] = {}
        self._ids: dict[tuple[str, str, str], str] = {}
        """Action ids by idempotency key."""
        self._counts: dict[tuple[str, str, int], int] = {}

    def get(self, key: ActionKey) -> ActionRun | None:
        """Return the run of an action, by its id, else by its idempotency key."""
        check_gateway(key.gateway)
        with self._lock:
            run = self._runs.get((key.gateway, key.client_id, key.action_id))
            if run is None and key.idempotency_key:
                first = self._ids.get((key.gateway, key.client_id, key.idempotency_key), "")
                run = self._runs.get((key.gateway, key.client_id, first))
            return run

    def begin(self, key: ActionKey, seen: ActionRun | None, run: ActionRun, now_ms: int) -> bool:
        """Begin a run, if it is still as it was seen."""
        del now_ms  # nothing is forgotten here
        place = (check_gateway(key.gateway), key.client_id, run.action_id)
        named = (key.gateway, key.client_id, key.idempotency_key)
        with self._lock:
            if self._runs.get(place) != seen:
                return False
            if seen is None and key.idempotency_key:
                if named in self._ids:
                    return False
                self._ids[named] = run.action_id
            self._runs[place] = run
            return True

    def end(self, key: ActionKey, run: ActionRun, now_ms: int) -> bool:
        """Store the state of a run; False if another owner has begun it."""
        del now_ms
        place = (check_gateway(key.gateway), key.client_id, run.action_id)
        with self._lock:
            stored = self._runs.get(place)
            if stored is None or stored.owner != run.owner or stored.state is not RunState.RUNNING:
                return False
            self._runs[place] = run
            return True

    def count(self, gateway: str, counter: str, now_ms: int, number_max: int) -> bool:
        """Count one within this minute."""
        place = (check_gateway(gateway), counter, now_ms // 60_000)
        with self._lock:
            if self._counts.get(place, 0) >= number_max:
                return False
            self._counts[place] = self._counts.get(place, 0) + 1
            return True


class MemoryAudit:
    """`lakesync.ports.AuditStore` in memory, for tests."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._records: dict[str, dict[str, AuditRecord]] = defaultdict(dict)

    def begin(self, record: AuditRecord, keep_until_s: int) -> None:
        """Write a record."""
        del keep_until_s  # a process does not live that long
        with self._lock:
            self._records[owner_of(record.gateway)].setdefault(record.id, record)

    def end(self, record: AuditRecord) -> None:
        """Write a record's outcome, unless it has one."""
        with self._lock:
            known = self._records[owner_of(record.gateway)]
            if record.id in known and known[record.id].outcome is AuditOutcome.STARTED:
                known[record.id] = record

    def records(self, gateway: str, query: AuditQuery) -> tuple[list[AuditRecord], str]:
        """Return records, the latest first."""
        low, high = bounds(query)
        with self._lock:
            known = sorted(self._records[owner_of(gateway)].items(), reverse=True)
        wanted = [
            record
            for name, record in known
            if low <= name <= high
            and name != query.below
            and query.user in {"", record.user}
            and query.operation in {"", record.operation}
        ]
        page = wanted[: query.limit]
        return page, page[-1].id if len(wanted) > len(page) else ""


class MemoryItems:
    """`lakesync.ports.GatewayItems` of stores in one process."""

    def __init__(
        self,
        buffer: MemoryBuffer,
        access: MemoryAccess,
        quotas: MemoryQuotas,
        connectors: MemoryConnectors | None = None,
        handlers: MemoryHandlers | None = None,
    ) -> None:
        self._buffer = buffer
        self._access = access
        self._quotas = quotas
        self._connectors = connectors or MemoryConnectors()
        self._handlers = handlers or MemoryHandlers()

    def count(self, gateway: str, tables: Iterable[str]) -> dict[str, int]:
        """Count what is stored of a gateway, by kind."""
        del tables  # memory contains all that exists
        parts = (self._buffer, self._access, self._quotas, self._connectors, self._handlers)
        return {
            kind: number for part in parts for kind, number in part.count_items(gateway).items()
        }

    def remove(self, gateway: str, tables: Iterable[str], has_time: Callable[[], bool]) -> bool:
        """Remove all of that, kind by kind."""
        del tables
        kinds = self._buffer.count_items(gateway)
        steps = [partial(self._buffer.remove_items, gateway, kind) for kind in kinds]
        for step in (*steps, partial(self._access.remove, gateway),
                     partial(self._quotas.remove, gateway),
                     partial(self._connectors.remove_all, gateway),
                     partial(self._handlers.remove_all, gateway)):  # fmt: skip
            if not has_time():
                return False
            step()
        return True
