"""Flows by a Glue job: many tasks read stretches of one table, and write them where it goes.

The library (`lakesync.connectors.large_polls`) decides what is read, when, and how it is written.
This package distributes that work over Spark.
Law Y11: ``docs/spec/flows.md``.
"""
