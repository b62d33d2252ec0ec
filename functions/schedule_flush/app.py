"""Runs on a schedule: sends one message for each gateway that has something to flush."""

import time

from lakesync.runtime import wiring
from lakesync.runtime.schedule import schedule_handler
from lakesync.runtime.settings import ScheduleFlushSettings

settings = wiring.load(ScheduleFlushSettings)
handler = schedule_handler(
    wiring.due(settings),
    wiring.queue(settings, settings.flush_queue_url).send_all,
    wiring.start_again(settings),
    time.monotonic,
    wiring.wall_clock,
    settings.flush_every_minutes,
)
