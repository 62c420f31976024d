"""Fixtures: the servers of the run, and servers of a test's own.

| fixture            | scope    | gives                                                                |
|--------------------|----------|----------------------------------------------------------------------|
| `rabbitmq`         | session  | the address of the run's RabbitMQ, shared by all tests               |
| `amqp_url`         | function | a URL of it, with a virtual host that is this test's alone           |
| `own_rabbitmq`     | function | a node that the test may stop, kill and restart                      |
| `tls_rabbitmq`     | session  | the address of the run's node with TLS; the certificates are `.tls`  |
| `rabbitmq_cluster` | function | three nodes of the test's own that form a cluster                    |
| `postgres`         | session  | the address of the run's PostgreSQL                                  |
| `postgres_url`     | function | a URL of it, with a database that is this test's alone               |
| `own_postgres`     | function | a server that the test may stop, kill and restart                    |

Tests that use them are marked `rabbitmq` or `postgres`. Where the server is not installed they are skipped, except in
CI (`CI=true`), where a test that did not run proves nothing and therefore fails.
"""

import logging
import os
import re
import secrets
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from redrive.testing import Endpoint, RabbitMQ
from servers import (
    SharedServers,
    end_with,
    missing,
    open_directory,
    rabbitmq_root,
    shared_postgres,
    shared_rabbitmq,
    shared_tls_rabbitmq,
)
from tests.support.cluster import Cluster
from tests.support.postgres import Database, Postgres
from tests.support.tls import TLSEndpoint

_NEEDS = {
    "rabbitmq": {"rabbitmq", "amqp_url", "own_rabbitmq", "tls_rabbitmq", "rabbitmq_cluster"},
    "postgres": {"postgres", "postgres_url", "own_postgres"},
}
_run = pytest.StashKey[SharedServers]()


# A busy machine is no reason for an example to fail; one that hangs is caught by the test's own deadline.
hypothesis.settings.register_profile("redrive", deadline=None, print_blob=True)
hypothesis.settings.load_profile("redrive")


# -- the run --------------------------------------------------------------------------------------------------


def pytest_configure(config: pytest.Config) -> None:
    if worker := getattr(config, "workerinput", None):
        end_with(Path(worker["servers"]))
    else:
        config.stash[_run] = SharedServers()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: object) -> None:
    """Tell a worker of pytest-xdist where to ask for servers."""
    node.workerinput["servers"] = str(node.config.stash[_run].socket)  # type: ignore[attr-defined]


def pytest_unconfigure(config: pytest.Config) -> None:
    if servers := config.stash.get(_run, None):
        servers.close()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for server, fixtures in _NEEDS.items():
            if fixtures.intersection(getattr(item, "fixturenames", ())):
                item.add_marker(server)


def pytest_runtest_setup(item: pytest.Item) -> None:
    for server in _NEEDS:
        if item.get_closest_marker(server) and (reason := missing(server)):
            if os.environ.get("CI") == "true":
                pytest.fail(reason, pytrace=False)
            pytest.skip(reason)


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    """A command that a test runs in this process configures the loggers of the whole process."""
    loggers = [logging.getLogger(name) for name in (None, "redrive", "alembic")]
    before = [(one.level, one.handlers[:], one.propagate) for one in loggers]
    yield
    for logger, (level, handlers, propagate) in zip(loggers, before, strict=True):
        logger.setLevel(level)
        logger.handlers[:], logger.propagate = handlers, propagate


@pytest.fixture(scope="session")
def _servers(pytestconfig: pytest.Config) -> Path:
    """The socket of the run's servers, in the controller as in its workers."""
    if worker := getattr(pytestconfig, "workerinput", None):
        return Path(worker["servers"])
    return pytestconfig.stash[_run].socket


# -- RabbitMQ -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def rabbitmq(_servers: Path) -> Endpoint:
    return shared_rabbitmq(_servers)


@pytest.fixture
def amqp_url(rabbitmq: Endpoint, request: pytest.FixtureRequest) -> Iterator[str]:
    vhost = _own_name(request, "-")
    rabbitmq.add_vhost(vhost)
    yield rabbitmq.url_for(vhost)
    rabbitmq.delete_vhost(vhost)


@pytest.fixture
def own_rabbitmq(tmp_path: Path) -> Iterator[RabbitMQ]:
    with RabbitMQ(tmp_path / "rabbitmq", name="own", root=rabbitmq_root()) as node:
        yield node


@pytest.fixture(scope="session")
def tls_rabbitmq(_servers: Path) -> TLSEndpoint:
    return shared_tls_rabbitmq(_servers)


@pytest.fixture
def rabbitmq_cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path / "cluster", root=rabbitmq_root()) as cluster:
        yield cluster


# -- PostgreSQL -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def postgres(_servers: Path) -> Database:
    return shared_postgres(_servers)


@pytest.fixture
def postgres_url(postgres: Database, request: pytest.FixtureRequest) -> Iterator[str]:
    database = _own_name(request, "_")
    postgres.create_database(database)
    yield postgres.url_for(database)
    postgres.drop_database(database)


@pytest.fixture
def own_postgres() -> Iterator[Postgres]:
    directory = open_directory()
    with Postgres(directory / "own") as server:
        yield server
    directory.rmdir()


def _own_name(request: pytest.FixtureRequest, separator: str) -> str:
    """A name nobody else has, in which the test is recognised when one looks at a server."""
    words = re.findall("[a-z0-9]+", request.node.name.lower())
    return separator.join([*words, secrets.token_hex(4)])[-60:]
