"""Outside systems, a folder or a module each; none imports another, and `sql` is shared."""

from typing import Final

DOORS: Final = (
    "bigquery.bigquery_database",
    "bigquery.bigquery_jobs",
    "bigquery.bigquery_ledger",
    "sql.asked_source",
    "sql.database_values",
    "sql.sql_settings",
    "sql.table_plan",
)
"""The modules that other folders may import."""
