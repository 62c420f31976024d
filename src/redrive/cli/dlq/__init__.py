"""`redrive dlq`: look at dead letters, plan, and send them back to work.

| module    | what                                        |
|-----------|---------------------------------------------|
| `inspect` | ls, groups, peek, show, query, check        |
| `redrive` | plan, redrive, move                         |
| `watch`   | watch: notify of new dead letters           |
| `discard` | `redrive dlq discard`                       |
| `edit`    | `redrive dlq edit` and `transform`          |
| `export`  | `redrive dlq export` and `import`           |
"""

from __future__ import annotations

import click

from redrive.cli.dlq.discard import discard
from redrive.cli.dlq.edit import edit, transform
from redrive.cli.dlq.export import export, import_
from redrive.cli.dlq.inspect import check, groups, list_, peek, query, show
from redrive.cli.dlq.redrive import move, plan, redrive
from redrive.cli.dlq.watch import watch


@click.group()
def dlq() -> None:
    """Dead-letter queues: look without harm, re-drive without loss.

    \b
    redrive dlq ls                                      what is dead, and where
    redrive dlq groups orders.dlq                       why: what failed in the same way
    redrive dlq peek orders.dlq -q 'error:Timeout'      the messages
    redrive dlq show orders.dlq 3f5a                    one of them, with its story
    redrive dlq plan orders.dlq --group 3fa9            what a re-drive would do
    redrive dlq redrive orders.dlq --ramp 1,5,20,100    do it, a few at first
    redrive dlq move orders.dlq --to orders.invalid     keep them, elsewhere

    Works on any RabbitMQ, over plain AMQP (--broker). With --app or --management it also finds the queues by itself.
    """


_LOOKING = (check, groups, list_, peek, query, show, watch)
_DOING = (discard, edit, export, import_, move, plan, redrive, transform)

for command in (*_LOOKING, *_DOING):
    dlq.add_command(command)
