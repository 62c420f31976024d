"""One call aligns an application with a topology, and says what is wrong instead of failing later."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import celery
import pytest
from celery import Celery

from redrive import App, Exchange, Queue, Retry, Topology
from redrive.errors import ConfigurationError, TopologyError
from redrive.integrations.celery import Task, equip
from redrive.integrations.celery.queues import CelerySettings, equipment_of

work = Exchange("work", "topic")
LADDER = Retry(steps=["30s", "60s"])
TOPOLOGY = Topology(
    [work],
    [Queue("films", work.on("film.*", "cut.*"), retry=LADDER), Queue("mails", work.on("mail.#")), Queue("bare")],
)


def nothing() -> None:
    """A task."""


@pytest.fixture
def app() -> Celery:
    return Celery("shop", broker="memory://", set_as_current=False)


def route(app: Celery, **options: Any) -> tuple[str, str | None, str | None]:
    found = app.amqp.router.route(options, "any.task")
    return found["queue"].name, found.get("exchange"), found.get("routing_key")


def test_the_settings_are_those_that_lose_nothing(app: Celery) -> None:
    app.conf.broker_transport_options = {"client_properties": {"a": "b"}}

    equip(app, TOPOLOGY, queue="films")

    conf = app.conf
    assert (conf.task_acks_late, conf.task_reject_on_worker_lost, conf.worker_prefetch_multiplier) == (True, True, 1)
    assert conf.broker_transport_options == {"client_properties": {"a": "b"}, "confirm_publish": True}
    assert conf.worker_consumer == "redrive.integrations.celery.bootsteps:Consumer"


def test_queues_are_declared_as_the_topology_has_them(app: Celery) -> None:
    app.conf.task_queues = [celery_queue("own")]

    equip(app, TOPOLOGY, queue="films")

    films, mails, bare, own = app.conf.task_queues
    assert films.queue_arguments == {
        "x-queue-type": "classic",
        "x-dead-letter-exchange": "dlq.films",
        "x-dead-letter-routing-key": "parking",
    }
    assert sorted(bind.routing_key for bind in films.bindings) == ["cut.*", "film.*"]
    assert (mails.exchange.name, mails.exchange.type, mails.routing_key) == ("work", "topic", "mail.#")
    assert (bare.name, own.name) == ("bare", "own")


def celery_queue(name: str) -> Any:
    from kombu import Queue as KombuQueue

    return KombuQueue(name)


def test_tasks_go_by_the_exchange_and_key_of_their_queue_unless_they_say_otherwise(app: Celery) -> None:
    direct = Exchange("video", "direct")
    equip(app, Topology([direct], [Queue("tasks", direct.on("video"), retry=LADDER), Queue("bare")]), queue="tasks")

    assert route(app) == ("tasks", "video", "video")
    assert route(app, queue="tasks") == ("tasks", "video", "video")
    assert route(app, queue="bare")[0] == "bare"
    assert route(app, queue="elsewhere")[:2] == ("elsewhere", None)
    assert route(app, exchange="video", routing_key="other")[1:] == ("video", "other")


def test_routes_of_the_application_come_first(app: Celery) -> None:
    app.conf.task_routes = {"any.task": {"queue": "mails"}}

    equip(app, TOPOLOGY, queue="films")

    assert route(app)[0] == "mails"


def test_a_task_has_the_ladders_number_of_retries_unless_it_says_one(app: Celery) -> None:
    equip(app, TOPOLOGY, queue="films")

    assert app.task(name="plain")(nothing).max_retries == 2
    assert app.task(name="own", max_retries=7)(nothing).max_retries == 7
    assert app.task(name="endless", max_retries=None)(nothing).max_retries is None


def test_a_base_class_of_the_applications_own_is_kept() -> None:
    class Base(celery.Task):
        max_retries = 9

    app = Celery("shop", broker="memory://", task_cls=Base, set_as_current=False)
    equip(app, TOPOLOGY, queue="films")

    task = app.task(name="plain")(nothing)
    assert isinstance(task._get_current_object(), Base)
    assert isinstance(task._get_current_object(), Task)
    assert task.max_retries == 9


def test_a_task_with_a_strange_base_is_told_of(app: Celery, caplog: pytest.LogCaptureFixture) -> None:
    equip(app, TOPOLOGY, queue="films")
    app.task(name="strange", base=celery.Task)(nothing)

    with caplog.at_level(logging.WARNING, "redrive"):
        app.finalize()

    assert [record.args for record in caplog.records] == [("strange",)]


@pytest.mark.parametrize(
    ("how", "why"),
    [
        (lambda app: equip(app, TOPOLOGY), "which queue do tasks go to by default"),
        (lambda app: equip(app, TOPOLOGY, queue="film"), "has no queue film; there are films, mails, bare"),
        (lambda app: equip(app, "topology.ini"), "want a file that ends with .toml"),
        (lambda app: equip(app, "none.toml"), "cannot read none.toml"),
        (lambda app: equip(app, 7), "want a Topology, an App, or a file"),
        (lambda app: equip(app, TOPOLOGY, queue="films", park="burn"), "want 'publish' or 'reject'"),
        (lambda app: equip(app, TOPOLOGY, queue="films", crash_limit=0), "want at least 1"),
        (
            lambda app: equip(app, Topology([], [Queue("films", retry=Retry(delay="1s", via="reject"))])),
            "use via='republish'",
        ),
        (lambda app: equip(app, Topology([], [Queue("films", existing=True)])), "may drop what is rejected"),
    ],
)
def test_what_cannot_be_is_said(app: Celery, how: Callable[[Celery], None], why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        how(app)


def test_it_comes_before_the_tasks_and_once(app: Celery) -> None:
    late = Celery("late", broker="memory://", set_as_current=False)
    late.task(name="early", lazy=False)(nothing)
    with pytest.raises(ConfigurationError, match="comes before the tasks; these exist already: early"):
        equip(late, TOPOLOGY, queue="films")

    equip(app, TOPOLOGY, queue="films")
    with pytest.raises(ConfigurationError, match="equipped already"):
        equip(app, TOPOLOGY, queue="films")


def test_a_topology_that_no_broker_takes_is_refused_at_once(app: Celery) -> None:
    with pytest.raises(TopologyError):
        equip(app, Topology([], [Queue("films"), Queue("films")]), queue="films")


def test_an_app_or_a_file_is_a_topology_too(app: Celery, tmp_path: Path) -> None:
    shop = App("shop", data=tmp_path)
    shop.queue("films", retry=LADDER)
    equip(app, shop)

    found = equipment_of(app)
    assert found is not None
    assert found.default.name == "films"


# Which queue --------------------------------------------------------------------------------------


def place(exchange: str, key: str, headers: dict[str, Any] | None = None) -> str | None:
    both = Topology([work], [Queue("one", work.on("film.*")), Queue("two", work.on("film.#")), Queue("three")])
    found = CelerySettings.of(both, "one", "publish", 5).place_of(exchange, key, headers or {})
    return found.name if found is not None else None


def test_a_delivery_is_of_the_queue_that_its_exchange_and_key_lead_to() -> None:
    assert place("", "three") == "three"
    assert place("work", "film.long.cut") == "two"
    assert place("work", "other") is None
    assert place("", "elsewhere") is None


def test_where_two_queues_get_it_the_message_knows_in_which_it_failed() -> None:
    assert place("work", "film.cut") == "one"
    assert place("work", "film.cut", {"x-redrive-queue": "two"}) == "two"
    assert place("work", "film.cut", {"x-redrive-queue": "three"}) == "one"


def test_without_celery_it_says_what_is_missing() -> None:
    program = "import sys; sys.modules['celery'] = None\nimport redrive.integrations.celery"

    path = os.pathsep.join(sys.path)
    told = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, env={"PYTHONPATH": path}
    )

    assert "pip install 'redrive[celery]'" in told.stderr
