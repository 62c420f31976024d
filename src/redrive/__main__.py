"""`python -m redrive` is the `redrive` command."""

from redrive.cli import main

main(prog_name="redrive")
