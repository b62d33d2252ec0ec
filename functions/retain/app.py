"""Runs the tasks of retention: of a slice of all gateways, or one of one gateway."""

import time

from lakesync.runtime import wiring, wiring_retention
from lakesync.runtime.retain_handler import retain_handler
from lakesync.runtime.settings_retention import RetainSettings

handler = retain_handler(*wiring_retention.retention(wiring.load(RetainSettings)), time.monotonic)
