"""Reads some pages of a connector's source and pushes them: a step of its poll."""

import time

from lakesync.runtime import wiring, wiring_connectors
from lakesync.runtime.polls import ingest_handler
from lakesync.runtime.settings import PollSettings

handler = ingest_handler(wiring_connectors.polls(wiring.load(PollSettings)), time.monotonic)
