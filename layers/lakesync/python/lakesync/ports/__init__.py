"""What the engine needs from outside, as Protocols, and the records that they exchange.

Implementations keep the promises stated here; ``tests/contracts`` checks each of them.
Ports raise: `lakesync.errors` for failures in operation, `HeadMoved` for a lost race. The public
operations above them turn these into a ``Result``.
"""

from lakesync.ports.access import (
    GATEWAY_KIND,
    AccessStore,
    KnownClient,
    Quota,
    QuotaStore,
    Revocation,
    Seen,
    Usage,
    WindowUsage,
)
from lakesync.ports.actions import (
    ActionKey,
    ActionRun,
    ActionRuns,
    HandlerStore,
    RunState,
    StoredHandler,
)
from lakesync.ports.attachments import (
    CarriesAttachments,
    SignedObjects,
    SignedRequest,
    UploadState,
)
from lakesync.ports.audit import (
    AuditOutcome,
    AuditQuery,
    AuditRecord,
    AuditStore,
)
from lakesync.ports.buffer import (
    Buffer,
    GatewayItems,
)
from lakesync.ports.client import (
    ConnectorDescription,
    DropsRequests,
    Hearer,
    Listening,
    Listens,
    RunsActions,
    TellsConnectorTypes,
    TellsSchemas,
    Transport,
)
from lakesync.ports.commit_log import (
    CommitLog,
)
from lakesync.ports.common import (
    Chance,
    MarkKey,
    RowKey,
    WallClock,
)
from lakesync.ports.configuration import (
    Configurations,
    DestinationStore,
)
from lakesync.ports.connections import (
    CONNECTION_S_MAX,
    Connection,
    Connections,
    Delivered,
    NotifyState,
    Sockets,
    Tickets,
)
from lakesync.ports.connectors import (
    ConnectorStore,
    PollSchedules,
    SecretStore,
    StoredConnector,
)
from lakesync.ports.entries import (
    NO_HEAD,
    ROW_PARTS,
    Commit,
    ConfigMoved,
    Head,
    HeadBusy,
    HeadMoved,
    LaneCommit,
    LogEntry,
    LogSlice,
    MarkPut,
    RowPut,
    RowSlice,
    StaleRead,
    StoredMark,
    StoredRow,
    head_after,
)
from lakesync.ports.lake import (
    BatchEncoder,
    BatchRow,
    ObjectStore,
    Queue,
)
from lakesync.ports.rows import (
    Rows,
)
from lakesync.ports.upkeep import (
    ClientStates,
    DeliveryState,
    DeliveryStates,
    FlushState,
    FlushStates,
    GatewaySlice,
    Upkeep,
)

__all__ = [
    "CONNECTION_S_MAX",
    "GATEWAY_KIND",
    "NO_HEAD",
    "ROW_PARTS",
    "AccessStore",
    "ActionKey",
    "ActionRun",
    "ActionRuns",
    "AuditOutcome",
    "AuditQuery",
    "AuditRecord",
    "AuditStore",
    "BatchEncoder",
    "BatchRow",
    "Buffer",
    "CarriesAttachments",
    "Chance",
    "ClientStates",
    "Commit",
    "CommitLog",
    "ConfigMoved",
    "Configurations",
    "Connection",
    "Connections",
    "ConnectorDescription",
    "ConnectorStore",
    "Delivered",
    "DeliveryState",
    "DeliveryStates",
    "DestinationStore",
    "DropsRequests",
    "FlushState",
    "FlushStates",
    "GatewayItems",
    "GatewaySlice",
    "HandlerStore",
    "Head",
    "HeadBusy",
    "HeadMoved",
    "Hearer",
    "KnownClient",
    "LaneCommit",
    "Listening",
    "Listens",
    "LogEntry",
    "LogSlice",
    "MarkKey",
    "MarkPut",
    "NotifyState",
    "ObjectStore",
    "PollSchedules",
    "Queue",
    "Quota",
    "QuotaStore",
    "Revocation",
    "RowKey",
    "RowPut",
    "RowSlice",
    "Rows",
    "RunState",
    "RunsActions",
    "SecretStore",
    "Seen",
    "SignedObjects",
    "SignedRequest",
    "Sockets",
    "StaleRead",
    "StoredConnector",
    "StoredHandler",
    "StoredMark",
    "StoredRow",
    "TellsConnectorTypes",
    "TellsSchemas",
    "Tickets",
    "Transport",
    "Upkeep",
    "UploadState",
    "Usage",
    "WallClock",
    "WindowUsage",
    "head_after",
]
