"""The log: how a push becomes a commit (`commit`), and how commits are read in order (`read`).

Beside these two, others use `declare` to change what is declared, `lanes` for limits and for what
waits to be flushed, and `log_cache`, by which a warm function does not read again.
"""

from __future__ import annotations

from typing import Final

DOORS: Final = ("commit", "declare", "lanes", "log_cache", "read")
"""What other folders may import."""
