"""Destinations and sources. Drivers are imported by the module that needs them, and only there."""

from typing import Final

DOORS: Final = (
    "connect",
    "copying",
    "database",
    "database_types",
    "file_database",
    "history_archive",
    "lake.adapter",
    "lake.memory",
    "lake.parquet",
    "lake.s3",
    "ledger_database",
    "memory",
    "network",
    "sql.adapter",
    "sql.ledger",
    "sql.standard",
)
"""What other folders may import."""
