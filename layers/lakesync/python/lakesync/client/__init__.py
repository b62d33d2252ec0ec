"""The client: an app's rows in SQLite, edited offline, synced when there is a network.

Start with `Client`. `HttpTransport` reaches a deployed gateway, `MemoryTransport` one in the same
process; `SyncLoop` syncs in the background.
"""

from lakesync.client.client import Client
from lakesync.client.entries import OutboxEntry, Status
from lakesync.client.http_transport import HttpTransport, Timeouts
from lakesync.client.loop import SyncLoop
from lakesync.client.summaries import PullSummary, PushSummary, SyncSummary
from lakesync.client.transport import Fault, MemoryTransport

__all__ = [
    "Client",
    "Fault",
    "HttpTransport",
    "MemoryTransport",
    "OutboxEntry",
    "PullSummary",
    "PushSummary",
    "Status",
    "SyncLoop",
    "SyncSummary",
    "Timeouts",
]
