"""Wrong usage with ``--json``: an unknown option or a missing argument is an error as JSON.

Typer finds these faults before a command begins, and would print them for people.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import typer

from lakesync.cli.faults import USAGE, Fault, fault_line

if TYPE_CHECKING:
    from typer import Typer


def run_for_programs(app: Typer) -> int:
    """Run the command line, print wrong usage as JSON, and return the exit code."""
    try:
        ended = app(standalone_mode=False)
    except typer.TyperException as error:
        sys.stderr.write(fault_line(_fault(error), for_programs=True) + "\n")
        return error.exit_code
    return ended if isinstance(ended, int) else 0


def _fault(error: typer.TyperException) -> Fault:
    """Return the fault: Typer's sentence in one line, and where the usage is described."""
    sentence = " ".join(error.format_message().split()).rstrip(".")
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "lakesync"
    return Fault(f"{sentence}; see {command} --help", "USAGE", USAGE)
