"""The client: an app's rows in SQLite, edited offline, synced when there is a network.

Start with `Client`. `HttpTransport` reaches a deployed gateway, `MemoryTransport` one in the same
process; `SyncLoop` syncs in the background.
"""

from lakesync.client.actions.api import Actions
from lakesync.client.actions.entries import ActionEntry, ActionStatus
from lakesync.client.actions.results import QueuedAction
from lakesync.client.actions.send import ActionSummary
from lakesync.client.aio.client import AsyncClient
from lakesync.client.aio.watch import AsyncWatch
from lakesync.client.attachments.api import Attachments
from lakesync.client.attachments.entries import AttachmentEntry, AttachmentStatus
from lakesync.client.attachments.upload import UploadSummary
from lakesync.client.backoff import Waits
from lakesync.client.client import Client
from lakesync.client.live.callbacks import Callback
from lakesync.client.live.status import ClientStatus, StoppedEdit
from lakesync.client.live.watch import Watch
from lakesync.client.loop import SyncLoop
from lakesync.client.modes import Mode
from lakesync.client.recovery.salvage import Salvaged, salvage
from lakesync.client.storage.conflicts import LostWrite
from lakesync.client.storage.edits import Transaction
from lakesync.client.summaries import PullSummary, SyncSummary
from lakesync.client.transport.connections import Timeouts
from lakesync.client.transport.http import HttpTransport
from lakesync.client.transport.in_process import Fault, MemoryTransport
from lakesync.client.upload.entries import OutboxEntry, Status
from lakesync.client.upload.push import PushSummary
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
