"""Flows by a Glue job: many tasks read stretches of one table, and write them where it goes.

What is read, when, and what becomes of it is the library's: `lakesync.connectors.large_polls`,
`lakesync.connectors.stretch`. Here is what spreads that over Spark.
Law Y11: ``docs/spec/flows.md``.
"""
