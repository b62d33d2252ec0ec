"""Runs the tasks of retention: of a slice of all gateways, or one of one gateway."""

import time

from lakesync.runtime import retention, wiring
from lakesync.runtime.retention import retain_handler
from lakesync.runtime.settings import RetainSettings

handler = retain_handler(*retention.retention(wiring.load(RetainSettings)), time.monotonic)
