"""A WebSocket beside the transport: the client receives changes, and applies what fits.

Rules of this module
    1. It only accelerates: a client without it, or that receives only part of its frames, has the
       same rows. A broadcast that fits the cursor is applied; anything else, and each new
       connection, wakes the sync loop. A broadcast that other rules decided reaches all clients at
       the same moment, and each reads tables again: it wakes the loop after a random time.
    2. The thread ends only when it is stopped, or when the gateway refuses the client for good.
       After a failure the wait doubles, with jitter.
    3. A handshake is refused by the gateway, or by somebody on the way, as
       `lakesync.client.gateway_http` tells them apart. A redirect is not followed, as
       websockets does by itself: its target would see the token among the sub-protocols.
    4. A new connection is opened before the old one is closed: API Gateway ends each after two
       hours. One in another network is replaced too, as its frames no longer arrive.
    5. API Gateway also ends a connection that is silent for ten minutes, and a dead one is silent.
       So a keep-alive is sent over a silent one, which API Gateway itself answers. What is missed
       on a connection that is open nevertheless is asked for: every second time a pull takes the
       place of the keep-alive.

Laws T1-T2: ``docs/spec/realtime.md``.
"""

from __future__ import annotations

import contextlib
import logging
import math
import random
import threading
import time
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import quote

from lakesync.client.gateway_http import error_of, probe_when_silent, socket_logger
from lakesync.client.waits import FOREIGN_WAIT_S_MAX, own_addresses, wait_here
from lakesync.core.clock import doubled
from lakesync.core.messages import BEARER, SUB_PROTOCOL
from lakesync.errors import (
    AuthFailed,
    GatewayDeleted,
    LakeSyncError,
    NotTheGateway,
    Revoked,
    ValidationFailed,
)
from lakesync.wire import proto
from lakesync.wire.proto import FRAME_CHARS_MAX, Tag

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakesync.client.gateway_http import Token
    from lakesync.core.messages import PullPage
    from lakesync.ports import Hearer

# --- the handshake --------------------------------------------------------------------------------


def connection_class(websockets: Any) -> type[Any]:
    """Return websockets' own connection, which tells a refusal as our error; see `error_of`."""
    client, refused = websockets.sync.client.ClientConnection, websockets.exceptions.InvalidStatus

    class Connection(client):  # type: ignore[misc, valid-type]  # imported when it is needed
        def handshake(self, *arguments: Any, **options: Any) -> None:
            try:
                super().handshake(*arguments, **options)
            except refused as exc:
                answer = exc.response
                body = bytes(answer.body or b"")
                raise error_of(answer.status_code, answer.headers, body) from exc

    return Connection


# --- the listener ---------------------------------------------------------------------------------


ANSWER_S_MAX: Final = 40.0
"""How long the answer may take before the connection is taken to be dead."""
NETWORK_LOOK_S: Final = 15.0
"""How often a client with a silent connection looks whether it is in another network."""
RENEWED_S: Final = 6_840.0
"""The age at which a connection is replaced, give or take a twentieth: API Gateway ends it
at 7,200.
"""
OPEN_S_MAX: Final = 10.0
"""How long opening a connection may take."""
CLOSE_S_MAX: Final = 2.0
"""How long `SocketListener.stop` waits; a connection that is being opened is closed later."""
LATER: Final = 0.1
"""By which fraction of its time a keep-alive may come later, by chance: clients that connected
together spread out.
"""
REREAD_S_MAX: Final = 30.0
"""How long a client that is told of other rules may wait before it reads again, by chance: all
clients are told at once. One that polls waits as long."""
_SPREAD: Final = 0.1
_UNAUTHORISED: Final = 401
_log = logging.getLogger("lakesync.client")


class SocketListener:
    """Keeps a WebSocket to the gateway from a thread of its own, from `start` to `stop`.

    Args:
        url: the stack's ``SocketUrl``.
        hearer: the client that is told.
        token: gives tokens.
        chance: a random number in [0, 1).
        monotonic_s: a clock that never goes back, in seconds.
        network: identifies the network that the device is in; another one ends a wait, and replaces
            a connection.

    Raises:
        ImportError: websockets is not installed.
    """

    def __init__(
        self,
        url: str,
        hearer: Hearer,
        token: Token,
        *,
        chance: Callable[[], float] = random.random,
        monotonic_s: Callable[[], float] = time.monotonic,
        network: Callable[[], object] | None = own_addresses,
    ) -> None:
        import websockets.sync.client  # noqa: PLC0415 - see `HttpTransport`

        self._websockets = websockets
        self._address = url
        self._url = f"{url}?clientId={quote(hearer.client_id, safe='')}"
        self._hearer = hearer
        self._token = token
        self._chance = chance
        self._monotonic_s = monotonic_s
        self._network = network
        self._failures = 0
        self._is_renewed = False
        """The token was renewed since the last frame came, so it is not renewed again."""
        self._requests = 0
        self._asked_at_s: float | None = None
        """When the keep-alive was sent that has no answer yet."""
        self._asks_next = False
        """A keep-alive was sent since it was last known that nothing was missed."""
        self._keeps_alive = True
        """False once a gateway has refused a keep-alive: an earlier release is asked by pulls."""
        self._rereads_at_s = math.inf
        self._stopped = threading.Event()
        self._socket: Any = None
        self._thread = threading.Thread(target=self._run, name="lakesync-socket", daemon=True)

    def start(self) -> Self:
        """Begin to listen, once."""
        self._thread.start()
        return self

    def stop(self) -> None:
        """Close the connection and end; safe to repeat."""
        self._stopped.set()
        self._close(self._socket)
        if self._thread is not threading.current_thread():
            self._thread.join(CLOSE_S_MAX)

    def _run(self) -> None:
        while not self._stopped.is_set():
            network = self._network() if self._network else None
            error = self._listen()
            self._hearer.on_connected(is_open=False, reason=self._reason(error))
            if self._stopped.is_set():
                return
            if isinstance(error, Revoked | GatewayDeleted):
                _log.warning("the gateway refuses a socket for good: %s", error)
                return
            self._renew(error)
            self._failures += 1
            wait_here(self._stopped, self._backoff_s(error), network, self._network)

    def _reason(self, error: Exception | None) -> str | None:
        """Return why no socket is open, for people; the address is the usual mistake."""
        if error is None or self._stopped.is_set():
            return None
        return f"{self._address}: {str(error) or type(error).__name__}"

    def _renew(self, error: Exception | None) -> None:
        """Have another token sent if this one is refused; if not by the gateway, then once."""
        by_others = isinstance(error, NotTheGateway) and error.http_status == _UNAUTHORISED
        if isinstance(error, AuthFailed) or (by_others and not self._is_renewed):
            self._is_renewed = True
            self._token.forget()

    def _backoff_s(self, error: Exception | None) -> float:
        least_s = error.retry_after_s if isinstance(error, LakeSyncError) else 0
        is_foreign = isinstance(error, LakeSyncError) and error.is_foreign
        most_s = self._hearer.reconnect_s_max
        if is_foreign:
            most_s = min(most_s, FOREIGN_WAIT_S_MAX)
        ceiling_s = doubled(self._hearer.reconnect_s, most_s, self._failures)
        # Clients that are all asked to wait for the same time must not return at the same time.
        spread_s = max(ceiling_s, least_s)
        return float(max(least_s, min(most_s, least_s + self._chance() * spread_s)))

    def _listen(self) -> Exception | None:
        """Keep a connection for as long as it can be; returns why it ended."""
        try:
            self._socket = self._open()
            while not self._stopped.is_set():
                # Whatever was committed before it was open is pulled.
                self._hearer.on_connected(is_open=True)
                self._rereads_at_s = math.inf
                self._hearer.wake()
                self._hear(self._monotonic_s() + self._about(RENEWED_S))
                old, self._socket = self._socket, self._open()
                self._close(old)
        except Exception as error:  # noqa: BLE001 - see rule 2
            _log.info("the socket is closed: %s: %s", type(error).__name__, error)
            return error
        finally:
            self._close(self._socket)
        return None

    def _about(self, seconds: float) -> float:
        return seconds * (1 + _SPREAD * (self._chance() - 0.5))

    def _open(self) -> Any:
        protocols: Any = [SUB_PROTOCOL, BEARER + self._token.give()]
        manager = self._websockets.sync.client.connect(
            self._url,
            subprotocols=protocols,
            compression=None,
            open_timeout=OPEN_S_MAX,
            close_timeout=1,
            # Keep-alives show whether the other side is there, and API Gateway counts them as
            # activity.
            ping_interval=None,
            max_size=FRAME_CHARS_MAX,
            create_connection=connection_class(self._websockets),
            logger=socket_logger(),
        )
        opened = manager.__enter__()
        probe_when_silent(opened.socket)
        return opened

    def _close(self, socket: Any) -> None:
        if socket is not None:
            with contextlib.suppress(Exception):
                socket.close()

    def _hear(self, until_s: float) -> None:
        network = self._network() if self._network else None
        self._asked_at_s, self._asks_next = None, False
        keep_alive_s = self._next_keep_alive_s()
        while not self._stopped.is_set() and (now_s := self._monotonic_s()) < until_s:
            if self._asked_at_s is None and now_s >= keep_alive_s:
                self._asked_at_s = now_s
                self._keep_alive()
            if now_s >= self._rereads_at_s:
                self._rereads_at_s = math.inf
                self._hearer.wake()
            silent_s = self._silent_s(now_s, until_s, keep_alive_s)
            try:
                frame = self._socket.recv(timeout=silent_s)
            except TimeoutError:
                if self._is_elsewhere(network):
                    return
                continue
            self._failures = 0
            self._is_renewed = False
            self._take(frame)
            self._asked_at_s = None
            keep_alive_s = self._next_keep_alive_s()

    def _silent_s(self, now_s: float, until_s: float, keep_alive_s: float) -> float:
        """Return how long to wait for a frame; `TimeoutError` if the connection is dead."""
        ends_s = min(until_s, self._rereads_at_s)
        if self._asked_at_s is None:
            ends_s = min(ends_s, keep_alive_s)
        elif now_s > self._asked_at_s + ANSWER_S_MAX:
            raise TimeoutError("a keep-alive or a pull over it was not answered")
        else:
            ends_s = min(ends_s, self._asked_at_s + ANSWER_S_MAX)
        if self._network:
            ends_s = min(ends_s, now_s + NETWORK_LOOK_S)
        return max(ends_s - now_s, 0.01)

    def _next_keep_alive_s(self) -> float:
        return self._monotonic_s() + self._hearer.heartbeat_s * (1 + LATER * self._chance())

    def _is_elsewhere(self, network: object) -> bool:
        """Return whether the device is in another network; to be in none may pass."""
        now = self._network() if self._network else None
        return bool(now) and now != network

    def _keep_alive(self) -> None:
        """Send what is answered, so that the connection stays open, or is seen to be dead."""
        if self._keeps_alive and not self._asks_next:
            self._asks_next = True
            self._socket.send(proto.KEEP_ALIVE)
            return
        self._requests = self._requests % 0xFFFF + 1
        self._socket.send(proto.encode_pull_frame(self._hearer.next_pull(), self._requests))

    def _take(self, frame: str | bytes) -> None:
        """Do what a frame is for; raises why the gateway closes the connection."""
        if not isinstance(frame, str):
            raise ValidationFailed("the gateway sent a frame that is not text")
        if frame.startswith("{"):
            _log.info("API Gateway answers by itself: %s", frame)  # it is busy; no frame is JSON
            return
        tag, message = proto.decode_frame(frame)
        if tag is Tag.REFUSAL:
            refused = proto.decode_refusal(message)
            if refused.closes:
                if self._asked_at_s is not None and isinstance(refused.error, ValidationFailed):
                    self._keeps_alive = False
                raise refused.error
            self._hearer.wake()  # over HTTPS the reason is reported, or it works
        elif tag is Tag.PULL:
            self._asks_next = not self._hearer.is_current(proto.decode_page(message))
            if self._asks_next:
                self._hearer.wake()
        elif tag is Tag.BROADCAST:
            self._bring(proto.decode_page(message))

    def _bring(self, page: PullPage) -> None:
        try:
            is_done = self._hearer.hear(page)
        except LakeSyncError:
            is_done = False  # the next sync reports the reason if it persists
        if is_done:
            self._asks_next = False
            self._rereads_at_s = math.inf  # it was read again meanwhile
        elif self._hearer.reads_again(page):
            if self._rereads_at_s == math.inf:  # the earliest of many draws is no spread
                self._rereads_at_s = self._monotonic_s() + self._chance() * REREAD_S_MAX
        else:
            self._hearer.wake()
