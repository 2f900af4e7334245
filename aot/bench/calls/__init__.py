"""Ways to run a model, one file each; see `aot.bench.contender`."""
