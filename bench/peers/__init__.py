"""One file per system. Each makes a `system` (see `bench.contract`) and uses its library as its documentation does."""
