"""Brings batches to declared databases: asked by a queue; swept on a schedule, so none is lost."""

import time

from lakesync.runtime import deliver, wiring
from lakesync.runtime.deliver import deliver_handler
from lakesync.runtime.invocations import with_questions
from lakesync.runtime.settings import DeliverSettings

settings = wiring.load(DeliverSettings)
queue = deliver.LateQueue(settings, settings.deliver_queue_url)
deliverer, archiver = deliver.deliverer(settings), deliver.archiver(settings)
delivering = deliver_handler(deliverer, archiver, queue.delay, time.monotonic)
opened = deliver.database_opener(settings, settings.secret_prefix, settings.database_hosts)
handler = with_questions(delivering, opened)
