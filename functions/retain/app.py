"""Retention, one task of one gateway at a time: build, trim, forget, clean; and the list of all."""

import time

from lakesync.runtime import wiring, wiring_retention
from lakesync.runtime.retain import retain_handler
from lakesync.runtime.settings import RetainSettings

handler = retain_handler(wiring_retention.retention(wiring.load(RetainSettings)), time.monotonic)
