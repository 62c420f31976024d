"""Fixtures of the interop tests: other people's clients, unmodified, against `redrive broker` as a process.

`broker_url` is the embedded broker's; in the slow form it is also RabbitMQ's, which proves that a test asks for
nothing that RabbitMQ would not do. `names` makes names that no other test uses.
"""

import gc
import secrets
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from interop.embedded import EmbeddedBroker
from redrive.testing import Endpoint

Names = Callable[[str], str]


@pytest.fixture(
    scope="module", params=["embedded", pytest.param("rabbitmq", marks=[pytest.mark.slow, pytest.mark.rabbitmq])]
)
def broker_url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if request.param == "embedded":
        with EmbeddedBroker(tmp_path_factory.mktemp("broker")) as broker:
            yield broker.url
    else:
        node: Endpoint = request.getfixturevalue("rabbitmq")
        vhost = f"interop-{secrets.token_hex(4)}"
        node.add_vhost(vhost)
        yield node.url_for(vhost)
        node.delete_vhost(vhost)


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    """A broker that the test may stop, kill and start again; it keeps its data."""
    with EmbeddedBroker(tmp_path, data=tmp_path / "data") as broker:
        yield broker


@pytest.fixture
def names() -> Names:
    ending = secrets.token_hex(4)
    return lambda name: f"{name}.{ending}"


@pytest.fixture
def litter() -> Iterator[None]:
    """Collect what a client leaves open when a connection fails, within the test that made it fail."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
