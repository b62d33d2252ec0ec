"""The pure core: clock, values, deltas, merge. No I/O, no clock, no randomness.

Read in this order: `clock`, `delta`, `merge`, `names`, `column_types`, `schema`, `rules`,
`visibility`, `layout`, `config`, `messages`. What leaves a gateway follows: `destinations`,
`column_map`, `flows`, `deliveries`.
"""

from __future__ import annotations
