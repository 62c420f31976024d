"""What the README shows works as it is shown."""

import re
from pathlib import Path

from redrive.app import App
from redrive.topology import Server, expand

README = Path(__file__).parents[2] / "README.md"


def test_the_first_program_is_an_application_with_retry_and_dead_letter_queue() -> None:
    program = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)[0]
    namespace: dict[str, object] = {"__name__": "uploads"}
    exec(compile(program, "uploads.py", "exec", dont_inherit=True), namespace)
    app = namespace["app"]
    assert isinstance(app, App)
    made = expand(app.topology, Server.of("4.3"))
    assert [queue.name for queue in made.queues] == ["q.validator", "q.validator.dlq", "q.validator.retry"]
    assert [spec.function.__name__ for spec in app.consumers] == ["validate"]


def test_every_page_it_links_to_is_there() -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", README.read_text())
    assert links
    assert [link for link in links if not (README.parent / link).exists()] == []
