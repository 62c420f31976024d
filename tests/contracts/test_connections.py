"""Getting in, or being told why not: passwords, virtual hosts, several hosts, TLS, and the limits agreed on."""

import asyncio
import time
from pathlib import Path

import pytest

from contracts.observing import drained, eventually, got
from redrive.client import Connection, LinkState, Properties
from redrive.errors import AuthenticationFailed, ConnectionFailed, NotFound
from redrive.testing import free_port
from tests.support.proxy import FaultProxy
from tests.support.tls import TLSEndpoint, make_certificates

SECRET = "s3cret"


def with_login(url: str, login: str) -> str:
    return url.replace("guest:guest@", login + "@")


# Getting in -------------------------------------------------------------------------------------------


async def test_an_open_connection_knows_the_broker(connection: Connection) -> None:
    assert connection.state is LinkState.OPEN
    assert connection.server_properties["product"] in ("RabbitMQ", "Redrive")
    assert connection.server_version >= (3, 10)


async def test_the_broker_tells_what_the_client_relies_on(connection: Connection) -> None:
    capabilities = connection.server_properties["capabilities"]

    assert isinstance(capabilities, dict)
    needed = ("publisher_confirms", "basic.nack", "consumer_cancel_notify", "exchange_exchange_bindings")
    assert all(capabilities[name] is True for name in needed)


async def test_a_wrong_password_is_told_quickly_and_not_shown(amqp_url: str) -> None:
    began = time.monotonic()

    with pytest.raises(AuthenticationFailed, match="403 ACCESS_REFUSED") as caught:
        await Connection(with_login(amqp_url, f"guest:{SECRET}")).open()

    assert time.monotonic() - began < 10  # RabbitMQ itself takes one second before it refuses
    assert SECRET not in str(caught.value)


async def test_an_unknown_user_is_refused_like_a_wrong_password(amqp_url: str) -> None:
    with pytest.raises(AuthenticationFailed, match="403 ACCESS_REFUSED"):
        await Connection(with_login(amqp_url, f"nobody:{SECRET}")).open()


async def test_an_unknown_virtual_host_is_told(amqp_url: str) -> None:
    base, _, _ = amqp_url.rpartition("/")

    with pytest.raises(AuthenticationFailed, match="530 NOT_ALLOWED - vhost no-such-vhost not found"):
        await Connection(f"{base}/no-such-vhost").open()


async def test_what_is_in_one_virtual_host_is_not_in_another(amqp_url: str, connection: Connection) -> None:
    name = f"only-in-{connection.url.virtual_host}"
    await connection.declare_queue(name)
    base, _, _ = amqp_url.rpartition("/")

    async with Connection(f"{base}/%2F") as elsewhere:
        with pytest.raises(NotFound):
            await elsewhere.queue_info(name)


async def test_when_the_first_host_is_dead_the_second_is_taken(amqp_url: str) -> None:
    url = amqp_url.replace("@", f"@127.0.0.1:{free_port()},")

    async with Connection(url) as connection:
        assert await connection.declare_queue("orders")


async def test_when_the_first_host_is_silent_the_second_is_taken(amqp_url: str) -> None:
    async with FaultProxy(amqp_url) as silent:
        silent.stall()
        url = amqp_url.replace("@", f"@127.0.0.1:{silent.port},") + "?connection_timeout=3000"

        async with Connection(url) as connection:
            assert await connection.declare_queue("orders")


async def test_when_all_hosts_are_dead_each_is_named(amqp_url: str) -> None:
    del amqp_url
    one, other = free_port(), free_port()

    with pytest.raises(ConnectionFailed, match=f"127.0.0.1:{one}: .*; 127.0.0.1:{other}: "):
        await Connection(f"amqp://guest:{SECRET}@127.0.0.1:{one},127.0.0.1:{other}/").open()


# Limits -----------------------------------------------------------------------------------------------


async def test_all_channels_that_were_agreed_on_can_be_used(amqp_url: str) -> None:
    async with Connection(f"{amqp_url}?channel_max=5") as connection:
        await connection.declare_queue("orders")
        for _ in range(3):  # one for publishing and one for declaring are open already
            await connection.consume("orders")

        async def number() -> int:
            return (await connection.queue_info("orders")).consumers

        await eventually(number, 3)


async def test_a_channel_that_was_closed_can_be_opened_again(amqp_url: str) -> None:
    async with Connection(f"{amqp_url}?channel_max=3") as connection:
        await connection.declare_queue("orders")
        for _ in range(20):
            async with await connection.consume("orders"):
                pass

        assert connection.reconnects == 0


async def test_small_frames_carry_large_messages_and_large_headers_that_fit(amqp_url: str) -> None:
    properties = Properties(headers={"story": "x" * 8000})
    async with Connection(f"{amqp_url}?frame_max=8192") as connection:
        await connection.declare_queue("orders")

        await connection.publish("", "orders", b"x" * 100_000, properties)

        delivery = await got(connection, "orders")
        assert (len(delivery.body), delivery.properties.headers) == (100_000, properties.headers)


async def test_heartbeats_keep_an_idle_connection_open(amqp_url: str) -> None:
    """Whoever is silent for two intervals is given up by either side; the proxy shows that nothing was reopened."""
    async with FaultProxy(amqp_url) as network, Connection(f"{network.url}?heartbeat=1") as connection:
        losing = asyncio.create_task(connection.until(LinkState.RECONNECTING))

        done, _ = await asyncio.wait([losing], timeout=2.5)
        losing.cancel()

        assert not done
        assert network.accepted == 1


# Secrets in the log -----------------------------------------------------------------------------------


async def test_no_password_is_logged_when_a_connection_is_lost_and_made_again(
    amqp_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    async with FaultProxy(amqp_url) as network, Connection(network.url) as connection:
        network.cut()
        await connection.until(LinkState.RECONNECTING)
        await asyncio.wait_for(connection.until(LinkState.OPEN), 15)

    assert "guest:guest" not in caplog.text
    assert "guest:" not in repr(connection)


# TLS --------------------------------------------------------------------------------------------------


@pytest.mark.xdist_group("tls")
class TestTLS:
    async def test_a_broker_that_shows_a_trusted_certificate_is_connected_to(self, tls_rabbitmq: TLSEndpoint) -> None:
        async with Connection(f"{tls_rabbitmq.tls_url}?{tls_rabbitmq.tls.trust_query}") as connection:
            queue = await connection.declare_queue(exclusive=True)
            await connection.publish("", queue.name, b"x" * 1_000_000)

            assert await drained(connection, queue.name) == [b"x" * 1_000_000]

    async def test_a_broker_whose_certificate_nobody_vouches_for_is_refused(self, tls_rabbitmq: TLSEndpoint) -> None:
        with pytest.raises(ConnectionFailed, match="certificate verify failed"):
            await Connection(tls_rabbitmq.tls_url).open()

    async def test_a_broker_with_a_certificate_of_another_authority_is_refused(
        self, tls_rabbitmq: TLSEndpoint, tmp_path: Path
    ) -> None:
        foreign = make_certificates(tmp_path)

        with pytest.raises(ConnectionFailed, match="certificate verify failed"):
            await Connection(f"{tls_rabbitmq.tls_url}?{foreign.trust_query}").open()

    async def test_a_certificate_for_another_name_is_refused(self, tls_rabbitmq: TLSEndpoint) -> None:
        query = f"{tls_rabbitmq.tls.trust_query}&server_name_indication=rabbit.example"

        with pytest.raises(ConnectionFailed, match="Hostname mismatch"):
            await Connection(f"{tls_rabbitmq.tls_url}?{query}").open()

    async def test_not_to_verify_must_be_asked_for(self, tls_rabbitmq: TLSEndpoint) -> None:
        async with Connection(f"{tls_rabbitmq.tls_url}?verify=verify_none") as connection:
            assert connection.state is LinkState.OPEN

    async def test_a_client_certificate_can_stand_for_a_password(self, tls_rabbitmq: TLSEndpoint) -> None:
        url = with_login(tls_rabbitmq.tls_url, f"nobody:{SECRET}")

        async with Connection(f"{url}?{tls_rabbitmq.tls.client_query}&auth_mechanism=external") as connection:
            queue = await connection.declare_queue(exclusive=True)
            await connection.publish("", queue.name, b"", Properties(user_id="guest"))

    async def test_plain_text_to_a_tls_port_is_no_connection(self, tls_rabbitmq: TLSEndpoint) -> None:
        with pytest.raises(ConnectionFailed):
            await Connection(f"amqp://127.0.0.1:{tls_rabbitmq.tls_port}/?connection_timeout=3000").open()

    async def test_tls_to_a_plain_port_is_no_connection(self, tls_rabbitmq: TLSEndpoint) -> None:
        with pytest.raises(ConnectionFailed):
            await Connection(f"amqps://127.0.0.1:{tls_rabbitmq.port}/?connection_timeout=3000").open()
