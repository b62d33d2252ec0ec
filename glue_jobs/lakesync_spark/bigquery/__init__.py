"""BigQuery destinations by a Glue job: many tasks prepare a large batch, one write takes it.

What is merged, how it is written and when is the library's: `lakesync.delivery`,
`lakesync.adapters.bigquery`. Here is what spreads that over Spark. Law D17:
``docs/spec/delivery.md``.
"""
