"""``lakesync`` and ``python -m lakesync.cli``: the command line, or what to install for it."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line."""
    for_programs = "--json" in sys.argv[1:]
    try:
        from lakesync.cli.app import app
    except ModuleNotFoundError as exc:
        from lakesync.analysis.connection import fault_line, fault_of

        fault = fault_of(exc)
        sys.stderr.write(fault_line(fault, for_programs=for_programs) + "\n")
        raise SystemExit(fault.exit_code) from None
    if for_programs:
        from lakesync.cli.app import run_for_programs

        raise SystemExit(run_for_programs(app))
    app()


if __name__ == "__main__":
    main()
