"""`python -m redrive` is `redrive`."""

from redrive.cli import main

main(prog_name="redrive")
