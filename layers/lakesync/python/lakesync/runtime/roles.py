"""Which roles a token may have for each route: the one place that says it.

A ``client`` reads and writes rows. An ``operator`` sees how the gateway performs and who uses it,
but no rows, and changes nothing. An ``admin`` may do all of it. A route that is not named here
cannot be created. Law U6: ``docs/spec/access.md``.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

CLIENT: Final = "client"
OPERATOR: Final = "operator"
ADMIN: Final = "admin"
ROLES: Final = (CLIENT, OPERATOR, ADMIN)

_ROWS: Final = (CLIENT, ADMIN)
_LOOKS: Final = (OPERATOR, ADMIN)
_ALL: Final = (ADMIN,)

ALLOWED: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "push": _ROWS,
        "pull": _ROWS,
        "pullByPost": _ROWS,
        "checkpoint": _ROWS,
        "metrics": _ROWS,
        "clientSchemas": _ROWS,
        "runActions": _ROWS,
        "actions": _ROWS,
        "uploadAttachment": _ROWS,
        "downloadAttachment": _ROWS,
        "connect": _ROWS,
        "ticket": _ROWS,
        "adminMetrics": _LOOKS,
        "audit": _LOOKS,
        "clients": _LOOKS,
        "access": _LOOKS,
        "schemas": _LOOKS,
        "syncRules": _LOOKS,
        "tables": _LOOKS,
        "flushing": _LOOKS,
        "registerSchema": _ALL,
        "saveSyncRules": _ALL,
        "placeTable": _ALL,
        "removeTable": _ALL,
        "changeAccess": _ALL,
        "disconnectClient": _ALL,
        "flush": _ALL,
        "saveFlushing": _ALL,
        "deleteGateway": _ALL,
        # A source's or a database's text of its last error, and of dead letters, may contain
        # values.
        "connectors": _ALL,
        "connector": _ALL,
        "registerConnector": _ALL,
        "changeConnector": _ALL,
        "removeConnector": _ALL,
        "destinations": _ALL,
        "declareDestination": _ALL,
        "changeDestination": _ALL,
        "removeDestination": _ALL,
        "flows": _ALL,
        "declareFlow": _ALL,
        "changeFlow": _ALL,
        "removeFlow": _ALL,
        "actionHandlers": _ALL,
        "registerActionHandler": _ALL,
        "removeActionHandler": _ALL,
    }
)
"""By what the API's description names each route; ``connect`` is the WebSocket's handshake."""
EVEN_DELETED: Final = frozenset({"deleteGateway", "audit"})
"""What may be asked of a gateway that was deleted: to go on, and who did it."""
