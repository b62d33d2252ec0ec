"""BigQuery as source and destination."""

from lakesync.adapters.bigquery.adapter import BigQueryAdapter
from lakesync.adapters.bigquery.jobs import Jobs

__all__ = ["BigQueryAdapter", "Jobs"]
