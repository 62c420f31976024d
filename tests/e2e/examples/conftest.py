"""The two stacks on which every example runs: with nothing installed, and as in production."""

from pathlib import Path

import pytest

from e2e.examples.stacks import Stack
from redrive.testing import Endpoint


@pytest.fixture
def embedded(tmp_path: Path) -> Stack:
    return Stack(tmp_path)


@pytest.fixture
def production(tmp_path: Path, amqp_url: str, postgres_url: str, rabbitmq: Endpoint) -> Stack:
    management = f"http://guest:guest@127.0.0.1:{rabbitmq.management_port}"
    return Stack(tmp_path, broker=amqp_url, database=postgres_url, management=management)


@pytest.fixture(
    params=["embedded", pytest.param("production", marks=[pytest.mark.rabbitmq, pytest.mark.postgres])],
)
def stack(request: pytest.FixtureRequest) -> Stack:
    found: Stack = request.getfixturevalue(request.param)
    return found
