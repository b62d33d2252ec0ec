"""Gateways that are due, from the queue or by direct request → batches on S3, announced."""

import time

from lakesync.runtime import wiring
from lakesync.runtime.settings import FlushSettings
from lakesync.runtime.tasks import flush_handler

flusher = wiring.flusher(wiring.load(FlushSettings))
handler = flush_handler(flusher.flush, time.monotonic)
