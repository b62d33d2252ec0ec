"""Destinations and sources. Drivers are imported by the module that needs them, and only there."""

from typing import Final

DOORS: Final = (
    "batches",
    "bigquery",
    "bigquery_jobs",
    "bigquery_ledger",
    "bigquery_statements",
    "connect",
    "copying",
    "database",
    "database_types",
    "headed_database",
    "history_archive",
    "lake.adapter",
    "lake.memory",
    "lake.parquet",
    "lake.s3",
    "lake.sqs",
    "memory",
    "mysql",
    "network",
    "postgres",
    "sql.standard",
    "sql.table_definition",
)
"""What other folders may import."""
