"""The Celery application.

celery -A examples.video.worker.celery_app worker

`equip` makes `task_queues` those of the topology, acknowledges late, takes one task at a time for each process, and has
retries wait in RabbitMQ. `rabbitmq/definitions.json` has the same queues; `VIDEO_DECLARE=0` leaves them to it.

Celery creates its tables when the first result is stored. The worker does so when it starts: a database that cannot be
used is an error before a task is taken.
"""

import os

from celery import Celery
from celery.backends.database import models
from celery.signals import worker_init

from examples.video import settings
from examples.video.topology import topology
from redrive import explains_errors
from redrive.integrations.celery import equip

app = Celery("video", broker=settings.broker(), backend=settings.results(), include=["examples.video.worker.tasks"])
app.conf.update(
    broker_connection_retry_on_startup=True,
    result_extended=True,
    task_track_started=True,
    worker_hijack_root_logger=False,
)
equip(app, topology, declare=os.environ.get("VIDEO_DECLARE", "1") != "0")


@worker_init.connect  # type: ignore[untyped-decorator]  # Celery has no types
@explains_errors
def prepare(**_: object) -> None:
    """Create the tables of the results."""
    database = settings.database()
    with database.explain_errors():
        database.create_tables(models.ResultModelBase.metadata)
    database.engine.dispose()  # the worker's processes are forked after this
