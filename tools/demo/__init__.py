"""The demo: a week of real flights, edited offline by two clients, synced, and found in the lake.

By sync rules the airline sees its carriers' flights alone, and the airport those of its origin, by
claims in their tokens; one claim changes on the way.

`flights` is the source data and what must come of it, `actors` the clients, `setting` where it
happens, `story` the steps, `evidence` the comparison, `screen` what is printed. Each run uses a
gateway of its own, so running it again is safe whatever happened to the last one.
"""
