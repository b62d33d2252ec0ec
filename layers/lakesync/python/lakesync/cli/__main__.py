"""``python -m lakesync.cli``: the command line where its script is not on the path."""

from lakesync.cli.app import main

main()
