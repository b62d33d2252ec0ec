"""The pure core: clock, values, deltas, merge. No I/O, no clock, no randomness.

Read in this order: `clock`, `values`, `delta`, `merge`, `column_types`, `schema`, `layout`,
`config`, `names`, `messages`.
"""
