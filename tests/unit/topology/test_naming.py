import pytest

from redrive.errors import ConfigurationError
from redrive.recovery.retry import Rung
from redrive.topology import Naming

RUNG = Rung.of("60s", "delay")


def test_a_wait_alone_and_one_of_several_are_called_differently() -> None:
    assert Naming().rung("q", RUNG, alone=True).queue == "q.retry"
    assert Naming().rung("q", RUNG, alone=False).queue == "q.retry.60s"


def test_a_rung_can_be_an_exception() -> None:
    naming = Naming(rung_queue="v_{delay}", rungs={"60s": {"key": "video", "back_key": ""}})
    names = naming.rung("q", RUNG, alone=False)
    assert (names.queue, names.key, names.back_key) == ("v_60s", "video", "")


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"dlq_queue": "{name}.dlq"}, "{name} is unknown; there are {queue}, {delay}"),
        ({"dlq_queue": "{queue"}, "naming.dlq_queue"),
        ({"dlq_queue": None}, "want a text"),
        ({"dlq_queue": "{queue.name}"}, "{queue.name} is unknown"),
        ({"rungs": {"60s": {"ky": "video"}}}, "'ky' is not one of queue, key, back_key"),
    ],
)
def test_a_template_that_means_nothing_is_refused(options: dict[str, object], complaint: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Naming(**options)  # type: ignore[arg-type]
    assert complaint in str(caught.value)


@pytest.mark.parametrize("template", ["{queue:>999999999}", "{queue!r}", "{delay:d}"])
def test_a_template_changes_nothing_about_what_it_holds(template: str) -> None:
    """A width of a gigabyte is a template like any other to `str.format`."""
    with pytest.raises(ConfigurationError, match="stand as they are"):
        Naming(dlq_queue=template)
