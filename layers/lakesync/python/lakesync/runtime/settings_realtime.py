"""The settings of the functions of WebSockets, from their environment."""

from __future__ import annotations

from dataclasses import dataclass

from lakesync.gateway.delivery import SENT_PER_S_MAX
from lakesync.runtime.settings import (
    AdminSettings,
    AuthoriseSettings,
    Aws,
    BufferSettings,
    PullSettings,
    PushSettings,
    not_empty,
    positive,
    variable,
)
from lakesync.runtime.settings_sources import PullAndSourceSettings


@dataclass(frozen=True, kw_only=True)
class ConnectionsSettings(Aws):
    """The table of open WebSockets: all that ``functions/disconnect`` needs."""

    connections_table: str = variable("CONNECTIONS_TABLE", not_empty)


@dataclass(frozen=True, kw_only=True)
class ConnectSettings(BufferSettings, ConnectionsSettings):
    """What ``functions/connect`` needs."""


@dataclass(frozen=True, kw_only=True)
class AuthoriseFunctionSettings(AuthoriseSettings, ConnectionsSettings):
    """What ``functions/authorise`` needs: also where tickets are."""


@dataclass(frozen=True, kw_only=True)
class PullFunctionSettings(PullAndSourceSettings, ConnectionsSettings):
    """What ``functions/pull`` needs: also where tickets are."""


@dataclass(frozen=True, kw_only=True)
class SocketSettings(ConnectionsSettings):
    """Where frames are posted."""

    socket_host: str = variable("SOCKET_HOST", not_empty)
    """The API's own host name, whatever domain clients use."""
    socket_stage: str = variable("SOCKET_STAGE", not_empty)


@dataclass(frozen=True, kw_only=True)
class FramesSettings(PushSettings, PullSettings, SocketSettings):
    """What ``functions/frames`` needs."""

    actions_function: str = variable("ACTIONS_FUNCTION", not_empty)
    """The name of ``functions/actions``, which runs the actions that come as frames."""


@dataclass(frozen=True, kw_only=True)
class NotifySettings(BufferSettings, SocketSettings):
    """What ``functions/notify`` needs."""

    sent_per_s: int = variable("SENT_PER_S", positive, SENT_PER_S_MAX)
    """Frames that one process sends in a second at the most."""


@dataclass(frozen=True, kw_only=True)
class AdminFunctionSettings(AdminSettings, SocketSettings):
    """What ``functions/admin`` needs: also who is connected."""
