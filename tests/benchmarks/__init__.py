"""Speed, measured: ``python tests/benchmarks`` prints the figures of the guide (questions)."""
