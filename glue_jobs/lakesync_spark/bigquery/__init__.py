"""The job's side of a BigQuery destination: large batches, prepared by many tasks, are one write.

What is merged, how it is written and when is the library's: `lakesync.delivery`,
`lakesync.adapters.bigquery`. Here is what spreads that over Spark. Law D17:
``docs/spec/delivery.md``.
"""
