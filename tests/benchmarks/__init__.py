"""Speed, measured: ``python tests/benchmarks`` prints the figures of workbooks/accuracy.md."""
