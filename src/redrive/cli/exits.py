"""Exit codes: they say what happened, so that scripts need not read."""

USAGE = 2  # or: needs a confirmation that nobody gave
PARTIAL = 3
NOT_FOUND = 4
NOT_ALLOWED = 5
CONFLICT = 6  # somebody else has it, or it is there and different
UNREACHABLE = 7
GUARDED = 8  # an operation stopped itself, because too much came back
FOUND = 9  # a check found what it looks for
INTERRUPTED = 130  # by Ctrl-C
