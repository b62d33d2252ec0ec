"""Speed, cost and memory against the targets: ``python -m benchmarks``, or ``make bench``."""
