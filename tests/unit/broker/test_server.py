"""What a broker lets in."""

import pytest

from redrive.broker.broker import Broker
from redrive.broker.server import BrokerServer
from redrive.client import Connection
from redrive.errors import AuthenticationFailed, ConfigurationError


def test_beyond_loopback_it_wants_users_of_its_own() -> None:
    with pytest.raises(ConfigurationError, match="lets others in"):
        BrokerServer(Broker(), host="0.0.0.0")


def test_beyond_loopback_it_is_fine_with_a_user_of_its_own() -> None:
    assert BrokerServer(Broker(users={"me": "secret"}), host="0.0.0.0").host == "0.0.0.0"


async def test_a_wrong_password_is_refused() -> None:
    async with BrokerServer(Broker(users={"me": "secret"})) as server:
        with pytest.raises(AuthenticationFailed, match="Login was refused"):
            await Connection(server.url.replace("//", "//me:wrong@")).open()


async def test_an_unknown_virtual_host_is_refused() -> None:
    async with BrokerServer(Broker()) as server:
        with pytest.raises(AuthenticationFailed, match="vhost nowhere not found"):
            await Connection(server.url + "nowhere").open()
