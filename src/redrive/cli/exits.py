"""Exit codes: they say what happened, so that scripts need not read."""

USAGE = 2
CONFLICT = 6  # somebody else has it
UNREACHABLE = 7
