"""``lakesync`` and ``python -m lakesync.cli``: the command line, or what to install for it."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line."""
    try:
        from lakesync.cli.app import app
    except ModuleNotFoundError as exc:
        from lakesync.cli.faults import USAGE, fault_of

        sys.stderr.write(f"error: {fault_of(exc).sentence}\n")
        raise SystemExit(USAGE) from None
    app()


if __name__ == "__main__":
    main()
