"""Draw docs/pictures/demo.svg: what `redrive demo` shows after twenty seconds, from a run. By `make screenshots`."""

from __future__ import annotations

import asyncio
import os
import re
import sys
import tempfile
from io import StringIO
from pathlib import Path
from random import Random

from rich.console import Console
from rich.text import Text

PICTURE = Path(__file__).parent.parent / "docs" / "pictures" / "demo.svg"
SECONDS = 19.0
BELOW = """\
The console is at http://127.0.0.1:8080/; sign in, once, by this link:
http://127.0.0.1:8080/sign-in/link/dMnEEj1TYGgWcwZ3ykX0Fz79uX7YhNKwzQcWEQZMe2J

Try, in another terminal:
  export REDRIVE_DATA=/tmp/redrive-demo
  redrive dlq groups q.extractor.dlq
  redrive dlq peek q.thumbnail.dlq
  redrive dlq redrive q.extractor.dlq --ramp 1,5,20

Ctrl-C settles the account and ends."""


async def draw(screen: Console) -> None:
    from redrive.demo.scenario import Scenario  # the application looks at the environment when it is made

    show = Scenario(Random(7), Console(file=StringIO()))
    stop = asyncio.Event()
    asyncio.get_running_loop().call_later(SECONDS, stop.set)
    async with show.open():
        await show.go_on(stop, 5, lambda: Text(BELOW))
        screen.print("$ redrive demo\n")
        screen.print(show.picture(lambda: Text(BELOW)))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        for name in [name for name in os.environ if name.startswith("REDRIVE_")]:
            del os.environ[name]
        os.environ["REDRIVE_DATA"] = folder
        recorder = Console(record=True, width=100, file=StringIO(), force_terminal=True, highlight=False)
        asyncio.run(draw(recorder))
    drawn = recorder.export_svg(title="redrive demo", unique_id="demo")
    PICTURE.write_text(re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL))  # fonts from elsewhere
    sys.stdout.write(f"{PICTURE.name}: {PICTURE.stat().st_size:,} bytes\n")
