"""Polls flows with Iceberg at an end, and counts what one would move: it alone has Iceberg."""

import time

from lakesync.runtime import wiring, wiring_connectors
from lakesync.runtime.settings import PollSettings

handler = wiring_connectors.flow_handler(wiring.load(PollSettings), time.monotonic)
