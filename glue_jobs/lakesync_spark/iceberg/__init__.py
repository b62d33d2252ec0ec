"""The lake: pure transforms, the tables' shape, and the runs that write, keep and erase its tables.

From the outside in: `run` processes the whole backlog, `apply` advances one table by a step;
`state` and `changes` are the transforms, pure and tested against ``lakesync.core.merge``. The laws
are in ``docs/spec/lake.md``.
"""
