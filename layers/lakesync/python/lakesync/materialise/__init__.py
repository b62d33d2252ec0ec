"""From claims to the lake's tables: code shared by Spark and a function, and small batches."""

from typing import Final

DOORS: Final = (
    "change_files",
    "iceberg_table",
    "lake_catalogue",
    "lake_rows",
    "lake_schema",
    "sharing",
    "small_batches",
    "views",
    "work_queue",
)
"""What other folders may import."""
