"""The lake: pure transforms, the tables' shape, and the runs that write, keep and erase its tables.

From the outside in: `run` works through everything that waits, `apply` takes one table a step
further; `state` and `changes` are the transforms, pure and tested against ``lakesync.core.merge``.
The promises are numbered in ``docs/spec/lake.md``.
"""
