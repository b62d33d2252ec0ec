"""Flushes gateways that are due, asked by a queue or directly: batches on S3, announced."""

import time

from lakesync.runtime import wiring
from lakesync.runtime.settings import FlushSettings
from lakesync.runtime.tasks import flush_handler

flusher = wiring.flusher(wiring.load(FlushSettings))
handler = flush_handler(
    flusher.flush,
    lambda gateway, has_time: flusher.flush_if_due(gateway, wiring.wall_clock(), has_time),
    flusher.close_lanes,
    time.monotonic,
)
