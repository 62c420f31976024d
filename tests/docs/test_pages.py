"""Every page of the manual is done, from its first block to its last, as its reader would."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import click
import pytest

import record_sessions
from docs.commands import split
from docs.markdown import Block, read
from docs.running import ROOT, Reader, Servers, Untrue
from redrive.cli import main as redrive
from redrive.testing import Endpoint
from tests.support.tls import TLSEndpoint

PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").glob("*/README.md")),
]
LANGUAGES = {"python", "console", "toml", "yaml", "json", "ini", "sql", "text", "mermaid"}

# Everything that is shown and not executed, with the reason.
NOT_RUN: dict[str, list[str]] = {
    "it needs a broker that is away; tests/e2e/examples has it": [
        'examples/raffle/README.md: $ curl -i --json \'{"name": "Ana", "email": "ana@email.com"}\' '
        "http://127.0.0.1:8000/api/v1/users",
    ],
    "it needs a help desk; tests/e2e/examples has it": [
        "examples/tickets/README.md: $ export HELPDESK_URL=http://127.0.0.1:8081",
    ],
    "it waits for half a minute; tests/e2e/examples has it": [
        "examples/video/README.md: Task examples.video.worker.tasks.transcode[…] retry: Retry in 30.0s: "
        "StorageAway('the storage has no originals: is it mounted?')",
        "examples/video/README.md: $ redrive dlq redrive video_dlq -q error:StorageAway --yes",
    ],
    "tests/infrastructure has it": ["docs/howto/test-without-a-broker.md: from redrive.testing import RabbitMQ"],
    "it would tell somebody else": [
        "docs/dead-letters.md: $ redrive dlq watch --webhook https://chat.example.com/hooks/1",
    ],
    "it makes a tag": ['docs/releasing.md: $ git tag --annotate v0.2.0 --message "Redrive 0.2.0"'],
    "needs a cluster": [
        "docs/howto/kubernetes.md: $ docker build --file deploy/Dockerfile --tag registry.example.org/shop:0.1.0 . "
        "&& docker push registry.example.org/shop:0.1.0",
        "docs/howto/kubernetes.md: $ sed -i 's/newTag: .*/newTag: 0.2.0/' kustomization.yaml",
        "docs/howto/kubernetes.md: $ kubectl apply -f secret.yaml && kubectl rollout restart deployment",
    ],
    "needs a container engine": [
        "docs/howto/docker-compose.md: $ cp .env.example .env",
        "docs/howto/docker-compose.md: $ docker compose build",
        "docs/howto/docker-compose.md: $ docker compose up --detach --scale worker=3",
        "examples/nfe/README.md: $ docker run -d --name rabbit -p 5672:5672 -p 15672:15672 rabbitmq:3-management",
    ],
    "needs kubectl": ["docs/howto/kubernetes.md: $ kubectl kustomize deploy/kubernetes"],
    "needs systemd": [
        "docs/howto/systemd.md: $ useradd --system --home-dir /var/lib/shop shop",
        "docs/howto/systemd.md: $ /opt/shop/venv/bin/pip install --upgrade ./shop",
    ],
}


def _name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def _parameters() -> list[object]:
    """Pages that need a server are marked as tests that do."""
    found = []
    for page in PAGES:
        wanted = read(page.read_text()).needs
        needs = {"rabbitmq" if need == "tls" else need for need in wanted & {"rabbitmq", "tls", "postgres"}}
        found.append(pytest.param(page, id=_name(page), marks=[getattr(pytest.mark, need) for need in sorted(needs)]))
    return found


@pytest.mark.parametrize("page", _parameters())
def test_what_the_page_says_is_so(page: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    content = read(page.read_text())
    try:
        with Reader(_name(page), content, tmp_path, _servers(content.needs, request)) as reader:
            reader.follow()
    except Untrue as error:
        failure = "\n".join([str(error), *getattr(error, "__notes__", ())])
    else:
        return
    pytest.fail(failure, pytrace=False)  # how it was found out is nobody's concern


def _servers(needs: frozenset[str], request: pytest.FixtureRequest) -> Servers:
    broker = management = database = None
    if "tls" in needs:
        secured: TLSEndpoint = request.getfixturevalue("tls_rabbitmq")
        shutil.copy(secured.tls.ca, request.getfixturevalue("tmp_path") / "ca.pem")
        broker = secured.tls_url
    if "rabbitmq" in needs:
        broker = request.getfixturevalue("amqp_url")
        node: Endpoint = request.getfixturevalue("rabbitmq")
        management = f"http://guest:guest@127.0.0.1:{node.management_port}"
    if "postgres" in needs:
        database = request.getfixturevalue("postgres_url")
    return Servers(broker, management, database)


def _blocks() -> list[tuple[str, Block]]:
    return [(_name(page), block) for page in PAGES for block in read(page.read_text()).blocks]


def test_every_block_says_what_language_it_is_in() -> None:
    assert [f"{page}:{block.line}" for page, block in _blocks() if block.language not in LANGUAGES] == []


def test_no_code_stands_outside_of_a_block() -> None:
    """What is indented by four is code for Markdown, and nobody executes it."""
    for page in PAGES:
        text = re.sub(r"(?ms)^ *```.*?^ *```$|^<!--.*?-->", "", page.read_text())
        assert re.findall(r"(?m)^\n {4,}\S.*", text) == [], _name(page)


def test_what_is_not_run_is_known_and_has_a_reason() -> None:
    found: dict[str, list[str]] = {}
    for page, block in _blocks():
        if (reason := block.mark("not run")) is not None:
            found.setdefault(reason, []).append(f"{page}: {block.text.splitlines()[0]}")
    assert found == NOT_RUN


def test_sessions_are_those_that_are_recorded() -> None:
    marked = {block.mark("session") for _, block in _blocks()} - {None}
    assert marked == set(record_sessions.COMMANDS)


def _said() -> list[tuple[str, str]]:
    """Every redrive command that is named anywhere, in a sentence or in a block."""
    said = []
    for page in PAGES:
        content = read(page.read_text())
        said += [(f"{_name(page)}:{line}", span) for line, span in content.spans]
        for block in content.blocks:
            if block.language == "console" and block.mark("not run") is None:
                said += [(f"{_name(page)}:{one.line}", one.text) for one in split(block.text, block.line)]
    return [(where, text) for where, text in said if text.startswith("redrive ")]


def test_every_command_that_is_named_is_one() -> None:
    """Down to its options: neither a command nor an option is named that does not exist."""
    said = _said()
    assert len(said) > 50
    assert [f"{where}: {text}: {wrong}" for where, text in said if (wrong := _wrong(text)) is not None] == []


def _wrong(text: str) -> str | None:
    """What is wrong with a command, as it stands in a sentence: `redrive dlq ls`, `redrive ops pause, resume`."""
    command: click.Command = redrive
    words = re.split(r" [#|>&] ?", text)[0].split()[1:]
    while words and isinstance(command, click.Group):
        if not re.fullmatch(r"[a-z]+,?", words[0]):
            break
        context = click.Context(command)
        names = words if words[0].endswith(",") else words[:1]
        found = [command.get_command(context, name.rstrip(",")) for name in names if name != "and"]
        if None in found:
            return f"there is no such command among {', '.join(command.list_commands(context))}"
        if len(names) > 1:
            return None
        command, words = found[0] or command, words[1:]
    known = {name for one in command.params for name in (*one.opts, *one.secondary_opts)} | {"--help", "-h"}
    told = {word.split("=")[0] for word in re.findall(r"(?<![\w-])--[a-z][a-z-]*", " ".join(words))}
    return f"no option {', '.join(sorted(told - known))}" if told - known else None
