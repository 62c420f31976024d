"""One file per question. Each makes a `scenario` (see `bench.contract`)."""
