"""Celery: tasks that wait for their retries in the broker, and are parked with their story when they fail for good.

    from celery import Celery
    from redrive.integrations.celery import equip

    app = Celery("video", broker="amqp://...")
    equip(app, "topology.toml", queue="video_tasks")

That is all. Tasks, `retry()`, `autoretry_for`, chains, groups, results and remote control stay Celery's. What changes
is where a message is, and when it leaves its queue:

    Celery alone                                      equipped
    a retry is published with an ETA, and a worker    a retry is published to the waiting queue of its attempt,
    holds it in memory, unacknowledged                mandatory and confirmed; then the message is acknowledged
    a task that fails for good is acknowledged        it is parked in the dead-letter queue, with every attempt and
                                                      the stack of the last; then it is acknowledged
    a task that kills its process is requeued, for    it is counted in the message, and parked after `crash_limit`
    ever, or lost                                     deaths
    what cannot be decoded is acknowledged            it is parked

| module      | what                                                                                      |
|-------------|-------------------------------------------------------------------------------------------|
| `setup`     | `equip`: the settings, the classes, the queues                                            |
| `decisions` | the decisions, as values: where a retry waits, what becomes of a failure, who may come in |
| `queues`    | which queue a task came from, and where its retries and its end are                       |
| `messages`  | a message as Celery has it, and as it is on the wire                                      |
| `producer`  | publish mandatory and confirmed over the application's own connections                    |
| `tasks`     | `Task`: retries                                                                           |
| `requests`  | `Request`, in the worker's main process: parking, crashes, waits that are not over        |
| `bootsteps` | the worker's own steps: the topology is made, and what is no task is parked               |
"""

from redrive.errors import ConfigurationError

try:
    import celery as _celery  # noqa: F401 - this module's namesake: imports are absolute
except ModuleNotFoundError as missing:
    raise ConfigurationError(
        f"there is no module {missing.name}: redrive.integrations.celery wants it. pip install 'redrive[celery]'"
    ) from None

from redrive.integrations.celery.setup import equip
from redrive.integrations.celery.tasks import Task

__all__ = ["Task", "equip"]
