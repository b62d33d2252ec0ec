"""Starts the Glue job when batches are announced, unless a run is at work."""

from lakesync.runtime import wiring
from lakesync.runtime.settings import MaterialiseSettings
from lakesync.runtime.tasks import materialise_handler

handler = materialise_handler(wiring.start_job(wiring.load(MaterialiseSettings)))
