from __future__ import annotations

import pytest

from redrive.protocol.heartbeat import Heartbeat, HeartbeatAction


@pytest.mark.parametrize(
    ("now", "pulse"),
    [
        (100.0, HeartbeatAction.FINE),
        (104.9, HeartbeatAction.FINE),
        (105.0, HeartbeatAction.SEND),
        (119.9, HeartbeatAction.SEND),
        (120.0, HeartbeatAction.LOST),
    ],
)
def test_half_an_interval_of_own_silence_asks_for_a_beat_and_two_of_the_peers_are_the_end(
    now: float, pulse: HeartbeatAction
) -> None:
    assert Heartbeat(interval=10, now=100.0).pulse(now) is pulse


def test_the_first_deadline_is_our_own_turn_to_speak() -> None:
    assert Heartbeat(interval=10, now=100.0).deadline() == 105.0


def test_while_we_speak_the_deadline_is_the_peers() -> None:
    heartbeat = Heartbeat(interval=10, now=100.0)
    heartbeat.last_sent = 118.0

    assert heartbeat.deadline() == 120.0
    assert heartbeat.pulse(119.0) is HeartbeatAction.FINE


def test_any_byte_from_the_peer_counts() -> None:
    heartbeat = Heartbeat(interval=10, now=100.0)
    heartbeat.last_sent = heartbeat.last_received = 119.0

    assert heartbeat.pulse(120.0) is HeartbeatAction.FINE
    assert heartbeat.deadline() == 124.0


def test_at_its_deadline_there_is_always_something_to_do() -> None:
    for last_received in (100.0, 103.0, 90.0):
        heartbeat = Heartbeat(interval=10, now=100.0)
        heartbeat.last_received = last_received
        deadline = heartbeat.deadline()

        assert deadline is not None
        assert heartbeat.pulse(deadline) is not HeartbeatAction.FINE


def test_an_interval_of_zero_switches_heartbeats_off() -> None:
    heartbeat = Heartbeat(interval=0, now=100.0)

    assert heartbeat.deadline() is None
    assert heartbeat.pulse(1_000_000.0) is HeartbeatAction.FINE


def test_a_heartbeat_introduces_itself() -> None:
    assert repr(Heartbeat(interval=10, now=100.0)) == "<Heartbeat every 10 s sent=100.000 received=100.000>"
