"""All the methods of AMQP 0-9-1 and RabbitMQ's own, declared as the specification has them."""

from __future__ import annotations

import pytest

import redrive.wire.methods
from redrive.wire.method import METHODS, Method, Sender, decode_method
from redrive.wire.methods import basic, channel, confirm, connection, exchange, queue, tx
from redrive.wire.methods.connection import ConnectionSecure, ConnectionSecureOk, ConnectionStartOk
from redrive.wire.methods.connection import ConnectionUpdateSecret as UpdateSecret

# Class and method numbers of amqp0-9-1.extended.xml, and of RabbitMQ's extensions.
NUMBERS = {
    "connection": (10, "start 10 start-ok 11 secure 20 secure-ok 21 tune 30 tune-ok 31 open 40 open-ok 41 close 50"
                       " close-ok 51 blocked 60 unblocked 61 update-secret 70 update-secret-ok 71"),
    "channel": (20, "open 10 open-ok 11 flow 20 flow-ok 21 close 40 close-ok 41"),
    "exchange": (40, "declare 10 declare-ok 11 delete 20 delete-ok 21 bind 30 bind-ok 31 unbind 40 unbind-ok 51"),
    "queue": (50, "declare 10 declare-ok 11 bind 20 bind-ok 21 purge 30 purge-ok 31 delete 40 delete-ok 41 unbind 50"
                  " unbind-ok 51"),
    "basic": (60, "qos 10 qos-ok 11 consume 20 consume-ok 21 cancel 30 cancel-ok 31 publish 40 return 50 deliver 60"
                  " get 70 get-ok 71 get-empty 72 ack 80 reject 90 recover-async 100 recover 110 recover-ok 111"
                  " nack 120"),
    "confirm": (85, "select 10 select-ok 11"),
    "tx": (90, "select 10 select-ok 11 commit 20 commit-ok 21 rollback 30 rollback-ok 31"),
}  # fmt: skip
BY_NAME = {declared.name: declared for declared in METHODS.values()}
EVERY = pytest.mark.parametrize("declared", METHODS.values(), ids=lambda declared: declared.name)


def numbered() -> dict[str, tuple[int, int]]:
    found = {}
    for amqp_class, (class_id, listed) in NUMBERS.items():
        words = listed.split()
        for name, number in zip(words[::2], words[1::2], strict=True):
            found[f"{amqp_class}.{name}"] = (class_id, int(number))
    return found


def test_every_method_has_the_number_of_the_specification() -> None:
    assert {name: declared.id for name, declared in BY_NAME.items()} == numbered()


def test_only_methods_that_carry_messages_have_content() -> None:
    carriers = {declared.name for declared in METHODS.values() if declared.has_content}
    assert carriers == {"basic.publish", "basic.return", "basic.deliver", "basic.get-ok"}


@EVERY
def test_a_method_is_declared_in_the_file_of_its_class(declared: type[Method]) -> None:
    files = {"basic": basic, "channel": channel, "confirm": confirm, "connection": connection}
    files |= {"exchange": exchange, "queue": queue, "tx": tx}
    file = files[declared.name.partition(".")[0]]
    assert declared.__module__ == file.__name__
    assert getattr(redrive.wire.methods, declared.__name__) is declared


@EVERY
def test_an_answer_is_a_method_of_the_other_side(declared: type[Method]) -> None:
    other = {Sender.CLIENT: Sender.SERVER, Sender.SERVER: Sender.CLIENT, Sender.EITHER: Sender.EITHER}
    for answer in declared.replies:
        assert BY_NAME[answer].sender is other[declared.sender]


@EVERY
def test_a_method_with_an_ok_names_it_as_its_answer(declared: type[Method]) -> None:
    if (answer := f"{declared.name}-ok") in BY_NAME:
        assert answer in declared.replies


@EVERY
def test_a_method_with_nothing_but_defaults_survives_the_wire(declared: type[Method]) -> None:
    assert decode_method(declared().encode()) == declared()


@pytest.mark.parametrize(
    "secretive",
    [
        ConnectionStartOk(response=b"hush"),
        ConnectionSecure(challenge=b"hush"),
        ConnectionSecureOk(response=b"hush"),
        UpdateSecret(new_secret=b"hush"),
    ],
    ids=lambda secretive: secretive.name,
)
def test_a_secret_is_not_shown(secretive: Method) -> None:
    assert "hush" not in repr(secretive)


def test_two_methods_have_no_number_in_common() -> None:
    assert len(BY_NAME) == len(METHODS)
