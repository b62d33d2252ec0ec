"""The pure core: clock, values, deltas, merge. No I/O, no clock, no randomness.

Read in this order: `clock`, `delta`, `merge`, `names`, `column_types`, `schema`, `rules`,
`visibility`, `layout`, `config`, `messages`. What leaves a gateway follows: `destinations`,
`column_map`, `flows`, `deliveries`.
"""

from __future__ import annotations

from typing import Final

DOORS: Final = (
    "attachments",
    "clock",
    "column_map",
    "column_types",
    "config",
    "deliveries",
    "delta",
    "destinations",
    "flows",
    "gateway_identity",
    "layout",
    "merge",
    "messages",
    "names",
    "rule_checks",
    "rules",
    "schema",
    "visibility",
    "wording",
)
"""What other folders may import."""
