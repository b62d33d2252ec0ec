"""Runs the tasks of retention, one of one gateway at a time; and lists all gateways."""

import time

from lakesync.runtime import wiring, wiring_retention
from lakesync.runtime.retain import retain_handler
from lakesync.runtime.settings import RetainSettings

handler = retain_handler(wiring_retention.retention(wiring.load(RetainSettings)), time.monotonic)
