"""Whoever follows a page finds out what is not true on it."""

from pathlib import Path

import pytest

from docs.markdown import read
from docs.running import Reader, Servers, Untrue


def follow(folder: Path, text: str) -> None:
    with Reader("page.md", read(text), folder) as reader:
        reader.follow()


def test_code_that_works_and_commands_that_say_what_is_shown_are_true(tmp_path: Path) -> None:
    follow(
        tmp_path,
        "```python\n# shop.py\nname = 'shop'\n```\n"
        "```python\nimport asyncio\nfrom shop import name\nawait asyncio.sleep(0)\nprint(name)\n```\n"
        "```text\nshop\n```\n"
        "```console\n$ cat shop.py\n# shop.py\nname = 'shop'\n$ false\n$ echo $?\n1\n```\n"
        "```json\n{}\n```\n```toml\na = 1\n```\n",
    )


@pytest.mark.parametrize(
    "text",
    [
        "```python\nraise ValueError\n```\n",
        "```python\n# shop.py\nimport nothing_like_that\n```\n",
        "```python\nprint(1)\n```\n```text\n2\n```\n",
        "```console\n$ false\n```\n",
        "```console\n$ echo one\ntwo\n```\n",
        "<!-- exits: 3 -->\n```console\n$ true\n```\n",
        "```json\n{\n```\n",
        "```toml\n[[queues]]\nname = 'x'\nretry = { atempts = 3 }\n```\n",
        "<!-- quoted: examples/raffle/app.py -->\n```python\nnothing like that\n```\n",
    ],
)
def test_what_is_not_true_is_found(tmp_path: Path, text: str) -> None:
    with pytest.raises(Untrue, match=r"page\.md:"):
        follow(tmp_path, text)


def test_what_is_marked_is_not_run(tmp_path: Path) -> None:
    follow(tmp_path, "<!-- not run: it would fail -->\n```console\n$ false\n```\n")


def test_a_program_goes_on_until_the_page_ends(tmp_path: Path) -> None:
    text = "```console\n$ redrive broker --memory\nlistening on amqp://127.0.0.1:5672/\n$ redrive ping --broker amqp://127.0.0.1:5672/\n```\n"
    with Reader("page.md", read(text), tmp_path) as reader:
        reader.follow()
        (program,) = reader.lasting
        assert program.process.running
    assert not program.process.running


def test_addresses_are_those_of_private_servers() -> None:
    servers = Servers("amqp://here/", "http://there", "postgresql+psycopg://db/x")
    shown = 'App(broker="amqps://a:b@rabbit.example.com:5671/shop", database="postgresql+psycopg://a:b@localhost/shop")'
    assert servers.stand_in(shown) == 'App(broker="amqp://here/", database="postgresql+psycopg://db/x")'
    assert servers.stand_in("--management http://guest:guest@localhost:15672") == "--management http://there"
    assert Servers().stand_in(shown) == shown
