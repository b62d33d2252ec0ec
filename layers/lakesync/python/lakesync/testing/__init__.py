"""For tests of apps and extensions: a gateway in memory, and contract suites to inherit."""
