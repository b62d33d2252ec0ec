"""From claims to the lake's tables: code shared by Spark and a function, and small batches."""

from typing import Final

DOORS: Final = (
    "change_files",
    "glue_views",
    "iceberg_table",
    "lake_catalogue",
    "lake_rows",
    "lake_schema",
    "opening",
    "sharing",
    "small_batches",
    "small_table",
    "views",
    "work_queue",
)
"""What other folders may import."""
