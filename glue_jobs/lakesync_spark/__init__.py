"""What the Glue job is made of: pure transforms, the tables' shape, marks, claims and the lease.

From the outside in: `run` works through everything that waits, `apply` takes one table a step
further, `chain` decides which batches those are; `fold`, `state` and `changes` are the transforms,
pure and tested against ``lakesync.core.merge``. The promises are numbered in ``docs/spec/lake.md``.
"""
