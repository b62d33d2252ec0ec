"""The demo: a week of real flights, edited offline by two clients, synced, and found in the lake.

`flights` is the source data and what must come of it, `actors` the clients, `story` the steps,
`evidence` the comparison, `screen` what is printed. Each run uses a gateway of its own, so running
it again is safe whatever happened to the last one.
"""
