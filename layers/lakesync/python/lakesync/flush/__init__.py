"""From the buffer to the destinations: ranges of the log become batches, then are announced.

`plan` says what a batch is, `run` makes them.
"""
