"""``python -m tests.support.vectors`` writes every file of vectors; traces take minutes."""

from __future__ import annotations

import logging
import sys

from tests.support.vectors import FOLDER, files

logging.disable()  # what clients tell of the faults that they meet on purpose
FOLDER.mkdir(parents=True, exist_ok=True)
for path, text in files():
    path.write_text(text, "utf-8")
    sys.stdout.write(f"{path.name}: {len(text.splitlines()) - 2} cases, {len(text) // 1024} KB\n")
