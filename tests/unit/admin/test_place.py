"""A broker and what is known about it."""

import pickle
from datetime import timedelta

from redrive import Retry
from redrive.admin.place import Place
from redrive.recovery.history import HeaderNames
from redrive.recovery.retry import Exponential
from redrive.topology import Exchange, Queue, Topology


def test_a_place_can_be_sent_to_another_process_though_functions_judge_errors() -> None:
    class Refused(Exception):
        """Known here alone."""

    waits = {"attempts": 11, "exponential": Exponential("5s"), "via": "delayed"}
    judging = Retry(**waits, never=lambda error: "no" in str(error), classify=lambda _: None)
    stepping = Retry(steps=["1s", "2s"], only=(Refused,))
    events = Exchange("events")
    queues = [Queue("orders", events.on("order"), retry=judging), Queue("bills", retry=stepping), Queue("plain")]
    names = {"orders": HeaderNames(attempts="x-retry-count")}
    place = Place("amqp://there", None, None, Topology([events], queues), {"orders": timedelta(days=1)}, names)

    sent = pickle.loads(pickle.dumps(place.for_another_process()))

    schedules = [Retry(**waits), Retry(steps=["1s", "2s"]), None]
    assert [queue.retry for queue in sent.topology.queues] == schedules
    assert sent.topology.queues[0].bind == queues[0].bind
    assert (sent.broker, sent.inbox_windows, sent.header_names) == (place.broker, place.inbox_windows, names)
