"""Runs on a schedule: sends one message for each gateway that has something to flush."""

import time

from lakesync.runtime import wiring
from lakesync.runtime.settings import ScheduleFlushSettings
from lakesync.runtime.tasks import schedule_handler

settings = wiring.load(ScheduleFlushSettings)
handler = schedule_handler(
    wiring.due(settings),
    wiring.queue(settings, settings.flush_queue_url).send_all,
    wiring.start_again(settings),
    time.monotonic,
    wiring.wall_clock,
    settings.flush_every_minutes,
)
