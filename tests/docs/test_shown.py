"""Whether a command said what is shown."""

import pytest

from docs.shown import Stand, matches, plain, says

UUID = "4bed7644-3cec-45c2-bfe8-069b079f5af3"
OTHER = "84718c48-fa67-4685-9aa2-614b35f697a7"


@pytest.mark.parametrize(
    ("shown", "said"),
    [
        ("done", "done\n"),
        ("a  b", "a     b"),
        ("3s ago", "2d3h ago"),
        (UUID, OTHER),
        ("at 2026-03-02 09:41:07 UTC", "at 2027-01-01 00:00:00 UTC"),
        ("op_01k3v6x8q2r5n7m4t9w0c1d2e3 SUCCEEDED", "op_01m7jehe6cfcxt9p26ksn95dgb SUCCEEDED"),
        ("http://127.0.0.1:8080/x", "http://127.0.0.1:31337/x"),
        ("1 passed in …", "1 passed in 0.35s"),
        ("first\n…\nlast", "first\nsecond\nthird\nlast"),
        ("first\n…\nlast", "first\nlast"),
        ("first\n…", "first\nsecond\nthird"),
        ('{"id":"4bed7644-…"}', f'{{"id":"{OTHER}"}}'),
        ("1,440,343 bytes", "12,345 bytes"),
    ],
)
def test_what_differs_from_run_to_run_may_differ(shown: str, said: str) -> None:
    assert matches(shown, said, Stand())


@pytest.mark.parametrize(
    ("shown", "said"),
    [
        ("done", "gone"),
        ("done", "done\nand more"),
        ("2 messages", "3 messages"),
        (UUID, "nobody"),
        ("3s ago", "never"),
        ("a.b", "axb"),
        ("first\nlast", "first\nsecond\nlast"),
        ("one …", "two three"),
        ("", "something"),
    ],
)
def test_what_is_another_word_is_found(shown: str, said: str) -> None:
    assert not matches(shown, said, Stand())


def test_a_part_may_be_shown_of_what_a_program_says() -> None:
    assert matches("ready", "booting\nready\nworking", Stand(), wholly=False)


def test_lines_of_a_program_may_come_in_any_order_and_among_others() -> None:
    assert says("one\n…\ntwo", "two\nbetween\none", Stand())
    assert not says("one\nthree", "two\none", Stand())


def test_a_later_command_is_given_the_id_that_was_really_there() -> None:
    stand = Stand()
    assert matches(f"id {UUID}", f"id {OTHER}", stand)
    assert stand.translate(f"curl http://host/{UUID}/xml") == f"curl http://host/{OTHER}/xml"


def test_the_beginning_of_an_id_becomes_the_whole_of_it() -> None:
    stand = Stand({"9b3a7d0c52e84f16": "0123456789abcdef"})
    assert stand.translate("redrive dlq show orders.dlq 9b3a") == "redrive dlq show orders.dlq 0123456789abcdef"


def test_words_that_are_no_ids_stay() -> None:
    stand = Stand({"9b3a7d0c52e84f16": "0123456789abcdef"})
    assert stand.translate("redrive dlq ls 9b3.dlq --app 9b3") == "redrive dlq ls 9b3.dlq --app 9b3"


def test_an_address_is_the_one_of_whoever_spoke_last() -> None:
    stand = Stand()
    matches("at 127.0.0.1:8000", "at 127.0.0.1:1111", stand)
    matches("at 127.0.0.1:8000", "at 127.0.0.1:2222", stand)
    assert stand.translate("curl http://127.0.0.1:8000/") == "curl http://127.0.0.1:2222/"


def test_in_code_only_addresses_are_others() -> None:
    stand = Stand({"127.0.0.1:5672": "127.0.0.1:4711", "9b3a7d0c52e84f16": "0123456789abcdef"})
    assert stand.addresses("amqp://127.0.0.1:5672/ 9b3a7d0c52e84f16") == "amqp://127.0.0.1:4711/ 9b3a7d0c52e84f16"


def test_colours_and_what_was_overwritten_are_not_seen() -> None:
    assert plain("\x1b[31mred\x1b[0m  \r\nhalf\rwhole\n") == "red\nwhole\n"
