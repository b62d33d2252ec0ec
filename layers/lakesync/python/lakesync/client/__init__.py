"""The client: an app's rows in SQLite, edited offline, synced when there is a network.

Start with `Client`. `HttpTransport` reaches a deployed gateway, `MemoryTransport` one in the same
process; `SyncLoop` syncs in the background.
"""

from typing import Final

from lakesync.client.app_actions import Actions, ActionSummary, QueuedAction
from lakesync.client.app_attachments import Attachments, UploadSummary
from lakesync.client.async_client import AsyncClient, AsyncWatch
from lakesync.client.change_feed import Callback, Watch
from lakesync.client.client import Client
from lakesync.client.client_status import ClientStatus, StoppedEdit
from lakesync.client.damaged_file import Salvaged, salvage
from lakesync.client.gateway_http import Timeouts
from lakesync.client.http_transport import HttpTransport
from lakesync.client.loop import SyncLoop
from lakesync.client.memory_transport import Fault, MemoryTransport
from lakesync.client.storage.action_queue import ActionEntry, ActionStatus
from lakesync.client.storage.attachment_store import AttachmentEntry, AttachmentStatus
from lakesync.client.storage.conflicts import LostWrite
from lakesync.client.storage.editor import Transaction
from lakesync.client.storage.misuse import Mode
from lakesync.client.storage.outbox import OutboxEntry, Status
from lakesync.client.sync import PullSummary, SyncSummary
from lakesync.client.upload import PushSummary
from lakesync.client.waits import Waits
from lakesync.core.attachments import Attachment
from lakesync.core.messages import Progress
from lakesync.ports import ConnectorDescription

__all__ = [
    "ActionEntry",
    "ActionStatus",
    "ActionSummary",
    "Actions",
    "AsyncClient",
    "AsyncWatch",
    "Attachment",
    "AttachmentEntry",
    "AttachmentStatus",
    "Attachments",
    "Callback",
    "Client",
    "ClientStatus",
    "ConnectorDescription",
    "Fault",
    "HttpTransport",
    "LostWrite",
    "MemoryTransport",
    "Mode",
    "OutboxEntry",
    "Progress",
    "PullSummary",
    "PushSummary",
    "QueuedAction",
    "Salvaged",
    "Status",
    "StoppedEdit",
    "SyncLoop",
    "SyncSummary",
    "Timeouts",
    "Transaction",
    "UploadSummary",
    "Waits",
    "Watch",
    "salvage",
]

DOORS: Final = (
    "gateway_http",
    "resync",
    "storage.file",
    "storage.private_files",
    "storage.stored_state",
    "waits",
    "websocket_listener",
)
"""What other folders may import, beside the names of this module."""
