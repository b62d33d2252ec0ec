"""Polls flows to and from databases, and counts what one would move: it reaches their subnets."""

import time

from lakesync.runtime import wiring, wiring_connectors
from lakesync.runtime.settings import PollSettings

handler = wiring_connectors.flow_handler(wiring.load(PollSettings), time.monotonic)
