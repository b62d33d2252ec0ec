"""Brings batches to declared databases: asked by a queue; swept on a schedule, so none is lost."""

import time

from lakesync.runtime import wiring, wiring_deliver
from lakesync.runtime.database_checks import with_questions
from lakesync.runtime.deliver import deliver_handler
from lakesync.runtime.settings import DeliverSettings

settings = wiring.load(DeliverSettings)
queue = wiring_deliver.LateQueue(settings, settings.deliver_queue_url)
deliverer, archiver = wiring_deliver.deliverer(settings), wiring_deliver.archiver(settings)
delivering = deliver_handler(deliverer, archiver, queue.delay, time.monotonic)
opened = wiring_deliver.database_opener(settings, settings.secret_prefix, settings.database_hosts)
handler = with_questions(delivering, opened)
