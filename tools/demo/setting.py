"""Where the demo happens: a gateway with its clients' folder, and its lake."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from lakesync.cli.session import sign
from lakesync.client import HttpTransport
from tools.demo.flights import EVERYWHERE

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tools.demo.flights import Rows, RuleClaims

TOKEN_S: Final = 3_600


@dataclass(frozen=True)
class Setting:
    """Where the story happens."""

    url: str
    gateway: str
    secret: str
    folder: Path
    """For the clients' files; emptied first."""
    socket_url: str = ""
    """Where WebSockets are opened; empty where there are none."""

    def token(
        self,
        client: str,
        role: str = "client",
        rule_claims: RuleClaims = EVERYWHERE,
        lifetime_s: int = TOKEN_S,
    ) -> str:
        """Sign a token, for an hour unless said, with the claims that the rules read."""
        claims = {"sub": client, "gw": self.gateway, "role": role, **rule_claims}
        return sign(claims, lifetime_s, self.secret, int(time.time()))

    def transport(self, client: str, rule_claims: RuleClaims) -> HttpTransport:
        """Return a client's way to the gateway."""
        return HttpTransport(
            self.url,
            self.gateway,
            token=lambda: self.token(client, rule_claims=rule_claims),
            socket_url=self.socket_url,
        )


class TheLake(Protocol):
    """What the story needs of the lake: `tools.demo.lake.DemoLake`, or a player of it in tests."""

    def ask(self, path: str, body: object = None, rest: str = "") -> dict[str, Any]:
        """Call an administrative route of the gateway; ``rest`` follows the gateway's name."""
        ...

    def flush(self) -> dict[str, Any]:
        """Write what the buffer holds to S3 and announce it."""
        ...

    def wait_until_merged(self, show: Callable[[str], None]) -> float:
        """Return once the tables hold what was announced; returns the seconds."""
        ...

    def rows(self, at_ms: int | None = None) -> Rows:
        """Return the table's rows, as they are or as they were."""
        ...
