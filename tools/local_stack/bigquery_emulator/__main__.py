"""Start the patched emulator: `python -m tools.local_stack.bigquery_emulator --check | start …`.

What follows ``start`` are the emulator's own options; ``--check`` ends after patching.
"""

from __future__ import annotations

import sys

from tools.local_stack.bigquery_emulator import http_patches, statement_patches
from tools.local_stack.bigquery_emulator.names import check_names
from tools.local_stack.emulator.names import EmulatorChangedError, emulator_module


def apply_patches() -> None:
    """Leave out the repeated work. Each function says which."""
    statement_patches.read_shapes_once()
    statement_patches.look_for_definitions_in_definitions()
    statement_patches.keep_no_earlier_states()
    statement_patches.filter_no_rows_without_policies()
    http_patches.answer_without_records()
    http_patches.answer_in_one_thread()


def main(arguments: list[str]) -> int:
    """Check the names, patch, and serve until stopped."""
    try:
        check_names()
    except EmulatorChangedError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    apply_patches()
    if arguments != ["--check"]:
        emulator_module("bqemulator.cli").main(arguments)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
