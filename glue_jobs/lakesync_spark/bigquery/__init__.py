"""BigQuery destinations by a Glue job: many tasks prepare a large batch, one write takes it.

The library (`lakesync.delivery`, `lakesync.systems.bigquery`) decides what is merged, how it is
written and when. This package distributes that work over Spark. Law D17:
``docs/spec/delivery.md``.
"""
