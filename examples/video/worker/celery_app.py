"""The Celery application.

celery -A examples.video.worker.celery_app worker

`equip` makes `task_queues` those of the topology, acknowledges late, takes one task at a time for each process, and has
retries wait in RabbitMQ. `rabbitmq/definitions.json` has the same queues; `VIDEO_DECLARE=0` leaves them to it.
"""

import os

from celery import Celery

from examples.video import settings
from examples.video.topology import topology
from redrive.integrations.celery import equip

app = Celery("video", broker=settings.broker(), backend=settings.results(), include=["examples.video.worker.tasks"])
app.conf.update(
    broker_connection_retry_on_startup=True,
    result_extended=True,
    task_track_started=True,
    worker_hijack_root_logger=False,
)
equip(app, topology, declare=os.environ.get("VIDEO_DECLARE", "1") != "0")
